#pragma once
/// The command line of `train` and `eval`: flags, --config and every key of the deck. Boost.Program_options parses and merges it.
#include "sherd/train/settings.hpp"

#include <set>
#include <string>
#include <vector>

namespace sherd {

/// A switch of a command besides the keys, without its dashes.
struct Flag {
    std::string name, help;
};

struct RunOptions {
    std::set<std::string> flags;  ///< those that were given
    Settings settings;            ///< not filled where --help or --print-keys was given
    bool has(const std::string& flag) const { return flags.contains(flag); }
};

/// Flags and resolved deck of the arguments after the command's name. Throws UsageError.
RunOptions parse_run_options(const std::vector<std::string>& arguments, const std::vector<Flag>& flags);

/// Prints what --help, --print-keys or --print-config ask for; false where none of them was given.
bool print_answer(const RunOptions& options, const std::string& command, const std::string& summary, const std::vector<Flag>& flags);

/// `sherd COMMAND --help`: usage, flags and the key table by section.
std::string run_help(const std::string& command, const std::string& summary, const std::vector<Flag>& flags);

/// The key table as it stands in docs/deck.md.
std::string keys_as_markdown();

}  // namespace sherd
