#pragma once
/// What `train` and `eval` do once their deck is resolved. Both start MPI; both throw sherd errors.
#include "sherd/train/settings.hpp"

#include <functional>
#include <string>
#include <vector>

namespace sherd {

/// What the command line adds to a deck.
struct TrainOptions {
    bool validate_only = false;  ///< check deck and files, then stop
    bool allow_changes = false;  ///< resume although keys or inputs that should stay the same have changed
    /// Keys of the two decks (`Settings::text`: the checkpoint's, today's) that must not change and did, as "section.key: old -> new".
    std::function<std::vector<std::string>(const std::string& before, const std::string& after)> fixed_changes;
    /// The value of a key in such a deck.
    std::function<std::string(const std::string& deck, const std::string& key)> value_of;
};

/// Trains as the settings say and returns the exit code: done or again, or that of an error that all ranks agreed on (already reported).
int run_training(const Settings& settings, const TrainOptions& options);

/// Evaluates model.weights on the validation documents; the last line on stdout is the validation object. Returns the exit code.
int run_evaluation(const Settings& settings);

}  // namespace sherd
