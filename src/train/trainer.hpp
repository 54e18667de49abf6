#pragma once
/// The step loop.
#include "train/ailments.hpp"
#include "train/decision.hpp"
#include "train/engine.hpp"
#include "train/metrics.hpp"
#include "train/step_feed.hpp"
#include "train/timing.hpp"

#include "sherd/checkpoint/checkpoint.hpp"
#include "sherd/data/order.hpp"
#include "sherd/train/settings.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace sherd {

/// Where a run is to end.
struct RunLength {
    std::int64_t steps = 0;  ///< of the schedule
    std::int64_t end = 0;    ///< the last step to take: steps, or run.stop_step if that comes first
};

/// Trains from `start` (a fresh run: all zeros) to the end, a signal, or the end of the job's time.
class Trainer {
  public:
    Trainer(const Settings& settings, const Inputs& inputs, Engine& engine, Communicator& host, const DocumentOrder& order,
            const RunLength& length, Progress start);

    /// Collective. Returns done or again. Throws AgreedError: non-finite (nothing of that step is applied), input (files), and what
    /// collectives throw.
    ExitCode run();

  private:
    using Clock = std::chrono::steady_clock;

    ExitCode all_steps();
    void finish_collectives() noexcept;
    void prepare_next();
    StepWork take_next();
    void forward_backward(const StepWork& work);
    StepVote vote();
    void add_health(StepVote& vote);
    void apply(double norm, double rate);
    [[noreturn]] void fail_non_finite(const StepVote& vote);
    void one_step();
    void report_step(const StepWork& work, const StepVote& vote, double norm, double rate, double seconds);
    void report_device(const StepVote& vote);
    void warn_of_no_targets(const StepWork& work) const;
    void validate();
    void checkpoint();
    bool checkpoint_due() const;
    std::optional<std::string> reason_to_stop() const;
    void record(const JsonLine& line);
    std::int64_t epoch_of(std::int64_t position) const { return position / order_.documents(); }

    const Settings& settings_;
    const Inputs& inputs_;
    Engine& engine_;
    Communicator& world_;
    Communicator& host_;  ///< for checkpoints: a rank may write for as long as it takes
    const TokenGroup& group_;
    const DocumentOrder& order_;
    RunLength length_;
    Progress progress_;
    StepFeed feed_;
    StepSize size_;
    CheckpointContext context_;
    MetricsFile metrics_;
    Timing timing_;

    std::int64_t read_position_;  ///< first document that is not yet being read
    std::int64_t read_step_;
    StepWork next_;
    double targets_ = 0;  ///< of the step to come, over all ranks
    StepVote last_vote_;
    std::int64_t validated_step_ = -1, saved_step_ = -1;
    Clock::time_point health_read_;  ///< of GPUs
    bool health_due_ = true;         ///< in this step, on all ranks
    GpuAilments ailments_;
    double step_seconds_ = 0, checkpoint_seconds_ = 0, validation_seconds_ = 0;  ///< of the last of each
    std::optional<double> job_end_;                                              ///< seconds since the epoch
    Clock::time_point saved_at_ = Clock::now();
};

}  // namespace sherd
