#include "options.hpp"

#include "words.hpp"

#include "sherd/app/deck.hpp"
#include "sherd/app/deck_file.hpp"
#include "sherd/runtime/error.hpp"

#include <boost/program_options.hpp>

#include <algorithm>
#include <filesystem>
#include <map>

namespace sherd {

namespace {

namespace po = boost::program_options;

/// Options of the keys; their values stay texts, as the table knows the types.
void add_keys(po::options_description& options) {
    for (const Section& section : deck_sections())
        for (const Key& key : section.keys) options.add_options()(key.full_name().c_str(), po::value<std::string>(), key.help.c_str());
    options.add_options()("nccl.*", po::value<std::string>(), "NCCL variable");
}

po::options_description describe_options(const std::vector<Flag>& flags) {
    po::options_description options;
    options.add_options()("config", po::value<std::string>(), "deck");
    for (const Flag& flag : flags) options.add_options()(flag.name.c_str(), flag.help.c_str());
    add_keys(options);
    return options;
}

[[noreturn]] void fail_unknown(std::string name, const std::vector<Flag>& flags) {
    name.erase(0, name.find_first_not_of('-'));
    name.erase(std::min(name.find('='), name.size()));
    std::vector<std::string> candidates{"config"};
    for (const Flag& flag : flags) candidates.push_back(flag.name);
    const std::string flag = nearest(name, candidates), key = nearest_key(name);
    const bool dotted = name.find('.') != std::string::npos;
    const bool is_flag = !dotted && edit_distance(name, flag) <= edit_distance(name, key.substr(key.find('.') + 1));
    throw UsageError("unknown option --{}; the nearest known one is --{}", name, is_flag ? flag : key);
}

/// The command line as Boost's parser sees it; a doubled option is an error, as is whatever is no option.
po::parsed_options parse_command_line(const std::vector<std::string>& arguments, const po::options_description& options,
                                      const std::vector<Flag>& flags) {
    namespace style = po::command_line_style;
    po::parsed_options parsed(&options);
    try {
        parsed = po::command_line_parser(arguments)
                     .options(options)
                     .style(style::allow_long | style::long_allow_adjacent | style::long_allow_next)
                     .run();
    } catch (const po::unknown_option& error) {
        fail_unknown(error.get_option_name(), flags);
    } catch (const po::invalid_command_line_syntax& error) {
        throw UsageError("command line: {} (options are --section.key=value or --section.key value)", error.what());
    }
    std::set<std::string> seen;
    for (const po::option& option : parsed.options) {
        if (option.position_key >= 0)
            throw UsageError("unexpected argument '{}': a deck is given as --config DECK, a key as --section.key=value",
                             option.value.empty() ? option.string_key : option.value.front());
        // Boost would take the next option for the value of one that lacks it
        if (option.original_tokens.size() > 1 && option.value.front().starts_with("--"))
            throw UsageError("--{} needs a value; one that starts with '--' is given as --{}=VALUE", option.string_key, option.string_key);
        if (!seen.insert(option.string_key).second) throw UsageError("--{} is given twice on the command line", option.string_key);
    }
    return parsed;
}

po::parsed_options as_parsed(const std::vector<DeckEntry>& deck, const po::options_description& options) {
    po::parsed_options parsed(&options);
    for (const DeckEntry& entry : deck) parsed.options.emplace_back(entry.full_name(), std::vector<std::string>{entry.value});
    return parsed;
}

}  // namespace

RunOptions parse_run_options(const std::vector<std::string>& arguments, const std::vector<Flag>& flags) {
    const po::options_description options = describe_options(flags);
    const po::parsed_options command_line = parse_command_line(arguments, options, flags);
    po::variables_map values;
    po::store(command_line, values);
    RunOptions result;
    for (const Flag& flag : flags)
        if (values.contains(flag.name)) result.flags.insert(flag.name);
    if (result.has("help") || result.has("print-keys")) return result;

    std::map<std::string, std::string> origins;
    std::string default_name = "run";
    if (values.contains("config")) {
        const std::filesystem::path path = values["config"].as<std::string>();
        const std::vector<DeckEntry> deck = read_deck(path);
        for (const DeckEntry& entry : deck) origins[entry.full_name()] = fmt::format("{}:{}", path.string(), entry.line);
        default_name = path.stem().string();
        po::store(as_parsed(deck, options), values);  // what is stored first stays: the command line wins
    }
    std::set<std::string> typed;
    for (const po::option& option : command_line.options) typed.insert(option.string_key);

    std::vector<GivenKey> given;
    for (const auto& [name, value] : values) {
        if (name.find('.') == std::string::npos) continue;
        const bool on_command_line = typed.contains(name);
        given.push_back({name, value.as<std::string>(), on_command_line ? "command line" : origins[name], on_command_line});
    }
    result.settings = resolve_deck(std::move(given), default_name);
    return result;
}

}  // namespace sherd
