#include "sherd/app/deck.hpp"

#include "sherd/app/deck_file.hpp"
#include "sherd/runtime/error.hpp"
#include "sherd/runtime/log.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace sherd {

namespace {

/// Keys of which only one may decide.
constexpr std::array<std::pair<const char*, const char*>, 2> rivals{{{"run.steps", "run.epochs"}, {"batch.sequences", "batch.tokens"}}};

using Given = std::vector<GivenKey>;

Given::iterator find_given(Given& given, const std::string& full_name) {
    return std::find_if(given.begin(), given.end(), [&](const GivenKey& key) { return key.full_name == full_name; });
}

/// "none" is how a printed deck says that the other key decides.
bool decides(const Given& given, Given::iterator key) {
    return key != given.end() && key->value != "none";
}

void settle_rivals(Given& given) {
    for (const auto& [one, other] : rivals) {
        const auto a = find_given(given, one), b = find_given(given, other);
        if (!decides(given, a) || !decides(given, b)) continue;
        if (a->on_command_line == b->on_command_line)
            throw UsageError("{} ({}) and {} ({}) are both given; only one of them may be", one, a->origin, other, b->origin);
        const auto loser = a->on_command_line ? b : a;
        const auto winner = a->on_command_line ? a : b;
        log::notice(fmt::format("{} of the command line takes the place of {} ({})", winner->full_name, loser->full_name, loser->origin));
        given.erase(loser);
    }
}

void take(Settings& settings, const Key& key, const GivenKey& given) {
    try {
        key.value.set(settings, given.value);
    } catch (const BadValue& error) {
        throw UsageError("{}: {} = '{}': {}", given.origin, given.full_name, given.value, error.what());
    }
}

void take_nccl(Settings& settings, const GivenKey& given) {
    const std::string name = given.full_name.substr(given.full_name.find('.') + 1);
    if (!is_nccl_variable(name)) throw UsageError("{}: '{}' is no NCCL_* variable, and [nccl] takes nothing else", given.origin, name);
    const auto bad = given.value.find_first_of(std::string("\n\r\0", 3));
    if (given.value.empty() || bad != std::string::npos)
        throw UsageError("{}: {}: expected a text of one line", given.origin, given.full_name);
    settings.nccl[name] = given.value;
}

std::string print_deck(const Settings& settings) {
    std::string text;
    for (const Section& section : deck_sections()) {
        text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section.name);
        for (const Key& key : section.keys) text += fmt::format("{} = {}\n", key.name, quoted_value(key.value.get(settings)));
        if (section.name != "nccl") continue;
        for (const auto& [name, value] : settings.nccl) text += fmt::format("{} = {}\n", name, quoted_value(value));
    }
    return text;
}

}  // namespace

Settings resolve_deck(std::vector<GivenKey> given, const std::string& default_name) {
    settle_rivals(given);
    Settings settings;
    for (const Section& section : deck_sections())
        for (const Key& key : section.keys) {
            const auto at = find_given(given, key.full_name());
            if (at != given.end())
                take(settings, key, *at);
            else if (key.required())
                throw UsageError("{} is required ({}): give it in [{}] of the deck or as --{}=...", key.full_name(), key.value.allowed,
                                 section.name, key.full_name());
            else
                take(settings, key, {key.full_name(), key.default_text, "default", false});
        }
    for (const GivenKey& key : given)
        if (key.full_name.starts_with("nccl.")) take_nccl(settings, key);

    if (find_given(given, "run.name") == given.end())
        take(settings, *find_key("run.name"), {"run.name", default_name, "name of the deck", false});
    if (find_given(given, "run.directory") == given.end()) settings.run.directory = "checkpoints/" + settings.run.name;
    const auto sequences = find_given(given, "batch.sequences");
    if (settings.batch.tokens > 0 && !decides(given, sequences)) settings.batch.sequences = 0;
    if (settings.batch.tokens == 0 && settings.batch.sequences == 0) settings.batch.sequences = Settings{}.batch.sequences;
    settings.text = print_deck(settings);
    return settings;
}

namespace {

/// section.key -> value without asking the table which keys exist: a checkpoint of another version may know others.
std::map<std::string, std::string> printed_values(const std::string& text, const std::string& name) {
    std::map<std::string, std::string> values;
    for (const DeckEntry& entry : parse_deck(text, name, UnknownKeys::taken)) values[entry.full_name()] = entry.value;
    return values;
}

}  // namespace

std::vector<DeckChange> deck_changes(const std::string& before, const std::string& after) {
    const auto old_values = printed_values(before, "deck of the checkpoint"), new_values = printed_values(after, "deck");
    std::map<std::string, std::pair<std::string, std::string>> both;
    for (const auto& [name, value] : old_values) both[name].first = value;
    for (const auto& [name, value] : new_values) both[name].second = value;

    std::vector<DeckChange> changes;
    for (const Section& section : deck_sections())
        for (const Key& key : section.keys) {
            const auto at = both.find(key.full_name());
            if (at == both.end()) continue;
            const auto& [was, is] = at->second;
            if (was != is) changes.push_back({key.full_name(), was, is, key.on_resume});
            both.erase(at);
        }
    for (const auto& [name, values] : both)
        if (values.first != values.second)
            changes.push_back({name, values.first, values.second, name.starts_with("nccl.") ? OnResume::may_change : OnResume::fixed});
    return changes;
}

}  // namespace sherd
