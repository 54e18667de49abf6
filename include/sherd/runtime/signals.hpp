#pragma once
/// Requests to stop: signals that only set a flag, and the end of a Slurm job's time.
#include <optional>
#include <string>

namespace sherd {

/// Catches TERM, INT, USR1 and USR2 while it lives; handlers only set a flag, the step loop asks for it.
class StopSignals {
  public:
    StopSignals();
    ~StopSignals();
    StopSignals(const StopSignals&) = delete;
    StopSignals& operator=(const StopSignals&) = delete;
    /// The signal that came last, or 0.
    static int received() noexcept;
};

/// Thrown where a signal ends a command that has something to clean up; main then lets the signal do what it does by default.
struct Interrupted {
    int signal;
};
/// Throws Interrupted if a signal was received.
void stop_if_interrupted();

/// Seconds since the epoch at which the job ends, from SLURM_JOB_END_TIME; nothing where it is absent, in the past or not a number
/// (the latter two with a warning).
std::optional<double> job_end_time();

}  // namespace sherd
