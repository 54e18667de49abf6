#pragma once
/// What `train` and `eval` do once their deck is resolved. Both start MPI; both throw sherd errors.
#include "sherd/train/settings.hpp"

namespace sherd {

/// Trains as the settings say and returns the exit code: done or again. `validate_only` checks deck and files and stops before step 1;
/// `allow_changes` resumes although keys that should stay fixed have changed.
int run_training(const Settings& settings, bool validate_only, bool allow_changes);

/// Evaluates model.weights on the validation documents; the last line on stdout is the validation object. Returns the exit code.
int run_evaluation(const Settings& settings);

}  // namespace sherd
