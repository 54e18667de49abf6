#pragma once
/// From texts to Settings: defaults, deck and command line become one resolved deck.
#include "sherd/app/keys.hpp"
#include "sherd/train/settings.hpp"

#include <string>
#include <vector>

namespace sherd {

/// The text of one key and where it was given.
struct GivenKey {
    std::string full_name;  ///< "section.key"
    std::string value;
    std::string origin;  ///< for messages: "demo.ini:12" or "command line"
    bool on_command_line = false;
};

/// Settings of the given keys, each at most once, with defaults for all others; `default_name` is run.name where that is not given.
/// Of run.steps and run.epochs, and of batch.sequences and batch.tokens, the one on the command line displaces the other one of the deck,
/// with a notice; both from the same place are an error. Throws UsageError, naming the origin, for a value that the key does not take and
/// for a required key that is missing.
Settings resolve_deck(std::vector<GivenKey> given, const std::string& default_name);

/// One key that differs between two resolved decks.
struct DeckChange {
    std::string full_name, before, after;  ///< a text is empty where that deck lacks the key
    OnResume on_resume;                    ///< of a key that only another version knew: fixed
};

/// What changed from the deck of a checkpoint to that of the run that resumes it, in the order of the table. Both are `Settings::text`;
/// keys of other versions of the program are fine. Throws UsageError if a text is no deck.
std::vector<DeckChange> deck_changes(const std::string& before, const std::string& after);

}  // namespace sherd
