#pragma once
/// The one table of deck keys. The parser, --help, --print-config and docs/deck.md are made from it; a new key is one row in app/keys.cpp.
#include "sherd/train/settings.hpp"

#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace sherd {

/// A text that is no value of its key; what() is the rest of the sentence "KEY = 'TEXT': ...".
class BadValue : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// How the text of a key becomes a field of Settings and back.
struct KeyValue {
    std::string allowed;                                     ///< for people: "integer, 1 or more"
    std::function<void(Settings&, const std::string&)> set;  ///< throws BadValue
    std::function<std::string(const Settings&)> get;         ///< canonical text: set(get()) changes nothing
};

/// What a resumed run may do with a key whose value is not that of the checkpoint.
enum class OnResume {
    may_change,  ///< taken as it is
    fixed,       ///< refused without --allow-changes
    by_content,  ///< the text may change, the content of the file is compared elsewhere
};

struct Key {
    std::string section, name;
    std::string default_text;  ///< empty: required
    OnResume on_resume;
    KeyValue value;
    std::string help;  ///< one sentence
    std::string full_name() const { return section + "." + name; }
    bool required() const { return default_text.empty(); }
};

struct Section {
    std::string name, help;
    std::vector<Key> keys;  ///< empty for [nccl], which takes any NCCL_* variable
};

/// All sections and keys, in the order in which they are printed.
const std::vector<Section>& deck_sections();

/// The row of "section.key"; nullptr where there is none.
const Key* find_key(std::string_view full_name);

/// The section of that name; nullptr where there is none.
const Section* find_section(std::string_view name);

/// The known "section.key" that is nearest to an unknown one; a right key in the wrong section counts as near.
std::string nearest_key(const std::string& full_name);

/// Whether a name may stand in [nccl]: NCCL_ and then capitals, digits and underscores.
bool is_nccl_variable(std::string_view name);

}  // namespace sherd
