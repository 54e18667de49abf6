#pragma once
/// The one place of a step where all ranks decide together: loss, norm, and whether to stop or write a checkpoint.
#include "sherd/comm/communicator.hpp"

#include <cstdint>
#include <vector>

namespace sherd {

/// What a rank knows at the end of its backward pass; all fields are combined over ranks as said.
struct StepVote {
    double loss_sum = 0;        ///< sum: token losses
    double next_targets = 0;    ///< sum: targets of the next step
    double memory_bytes = 0;    ///< maximum: peak
    double stop_signal = 0;     ///< maximum: the signal received, 0 none
    double time_is_up = 0;      ///< of rank 0
    double checkpoint_due = 0;  ///< of rank 0: by the clock
    double health_due = 0;      ///< of rank 0: by the clock; all ranks then read the health of their GPUs in the next step
    // of GPUs, where their health was read in this step; -1: not known
    double temperature_c = -1;    ///< maximum
    double power_w = -1;          ///< sum
    double throttled = -1;        ///< sum: GPUs that are held down
    double ecc_errors = -1;       ///< sum: uncorrected
    std::vector<double> squares;  ///< sum, by unit: squares of the owned gradient
    bool finite() const;          ///< whether loss and all squares are
};

/// Collective; the same result on every rank.
StepVote decide(Communicator& communicator, const StepVote& mine);

}  // namespace sherd
