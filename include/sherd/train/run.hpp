#pragma once
/// What `train` and `eval` do once their deck is resolved. Both start MPI; both throw sherd errors.
#include "sherd/train/settings.hpp"

#include <functional>
#include <string>
#include <vector>

namespace sherd {

/// A key whose value is not that of the checkpoint.
struct KeyChange {
    std::string name, before, after;
    bool fixed;  ///< must not change without --allow-changes
};

/// What the command line adds to a deck.
struct TrainOptions {
    bool validate_only = false;  ///< check deck and files, then stop
    bool allow_changes = false;  ///< resume although keys or inputs that should stay the same have changed
    /// What differs between the decks of a checkpoint and of this run (`Settings::text`).
    std::function<std::vector<KeyChange>(const std::string& before, const std::string& after)> changes;
};

/// Trains as the settings say and returns the exit code: done or again, or that of an error that all ranks agreed on (already reported).
int run_training(const Settings& settings, const TrainOptions& options);

/// Evaluates model.weights on the validation documents; the last line on stdout is the validation object. Returns the exit code.
int run_evaluation(const Settings& settings);

}  // namespace sherd
