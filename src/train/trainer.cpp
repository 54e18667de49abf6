#include "train/trainer.hpp"

#include "train/evaluator.hpp"
#include "train/report.hpp"

#include "sherd/optim/schedule.hpp"
#include "sherd/runtime/error.hpp"
#include "sherd/runtime/log.hpp"
#include "sherd/runtime/signals.hpp"

#include <cmath>
#include <ctime>
#include <numeric>
#include <utility>

namespace sherd {

Trainer::Trainer(const Settings& settings, const Inputs& inputs, Engine& engine, Communicator& host, const DocumentOrder& order,
                 const RunLength& length, Progress start)
    : settings_(settings),
      inputs_(inputs),
      engine_(engine),
      world_(*engine.world),
      host_(host),
      group_(inputs.tokens->train()),
      order_(order),
      length_(length),
      progress_(start),
      feed_(group_, engine.budgets, world_.rank()),
      size_{settings.batch.tokens > 0 ? 0 : settings.batch.sequences, settings.batch.tokens},
      context_{settings.run.directory,  inputs.weights->config(), settings.text, inputs.digests, inputs.source_types, {},
               settings.checkpoint.keep},
      metrics_(settings.run.directory),
      read_position_(start.position),
      read_step_(start.step),
      job_end_(job_end_time()) {
    if (world_.rank() == 0)
        for (const std::string& name : inputs.weights->file_names()) context_.files.push_back({name, inputs.weights->file(name)});
    if (start.step > 0) saved_step_ = start.step;
    // until a set was written and timed: three fp32 states at 100 MB/s a rank
    checkpoint_seconds_ = 12.0 * static_cast<double>(inputs.layout->parameter_count()) / world_.size() / 1e8;
}

void Trainer::prepare_next() {
    if (read_step_ >= length_.end) return;
    auto documents = step_documents(order_, read_position_, size_, [&](std::int64_t i) { return group_.length(i); });
    read_position_ += static_cast<std::int64_t>(documents.size());
    ++read_step_;
    feed_.prepare(std::move(documents));
}

/// The step that was prepared; reading errors of one rank become those of all.
StepWork Trainer::take_next() {
    const Timing::Scope scope(timing_, Phase::data);
    StepWork work;
    collectively(world_, [&] { work = feed_.take(); });
    return work;
}

ExitCode Trainer::run() {
    try {
        return all_steps();
    } catch (const AgreedError&) {
        finish_collectives();
        throw;
    }
}

/// All ranks are at the same point, so that what they have enqueued ends: refreshed weights may be under way. A rank that left its part out
/// would keep the others waiting.
void Trainer::finish_collectives() noexcept {
    try {
        engine_.backend().synchronize(*engine_.communication);
    } catch (...) {  // NOLINT(bugprone-empty-catch): the error that ends the run came first
    }
}

ExitCode Trainer::all_steps() {
    collectively(world_, [&] {
        if (world_.rank() == 0) metrics_.set_aside_after(progress_.step > 0 ? progress_.step : -1);
    });
    JsonLine line(progress_.step > 0 ? "resume" : "start");
    record(line.add("step", progress_.step)
               .add("ranks", std::int64_t{world_.size()})
               .add("strategy", describe(engine_.plan))
               .add("compute", name_of(engine_.type))
               .add("parameters", inputs_.layout->parameter_count())
               .add("steps", length_.steps)
               .add("version", SHERD_VERSION)
               .add("device", engine_.devices.front())
               .add("planned_bytes", static_cast<std::int64_t>(engine_.largest_plan)));
    if (progress_.step == 0) validate();
    prepare_next();
    if (read_step_ > progress_.step) next_ = take_next();
    StepVote opening;
    opening.next_targets = static_cast<double>(next_.my_targets);
    targets_ = decide(world_, opening).next_targets;
    std::optional<std::string> stop;
    while (!stop && progress_.step < length_.end) {
        one_step();
        if (progress_.step < length_.end) stop = reason_to_stop();
        // a run that is to stop may have seconds: its checkpoint comes first. At the end validation does, so that a set of the last step
        // means that nothing is missing
        const bool by_steps = settings_.evaluation.every > 0 && progress_.step % settings_.evaluation.every == 0;
        if (!stop && (by_steps || progress_.step == length_.end)) validate();
        if (checkpoint_due()) checkpoint();
    }
    if (!stop && validated_step_ != progress_.step) validate();
    if (saved_step_ != progress_.step) checkpoint();
    const ExitCode code = stop ? ExitCode::again : ExitCode::done;
    const std::string reason = stop ? *stop : progress_.step < length_.steps ? "run.stop_step" : "done";
    record(JsonLine("stop").add("step", progress_.step).add("reason", reason).add("exit", static_cast<std::int64_t>(code)));
    log::line(
        stop ? fmt::format("stopped after step {} of {} ({}); start the same command again to go on", progress_.step, length_.steps, reason)
             : fmt::format("finished step {} of {}", progress_.step, length_.steps));
    const double total = std::chrono::duration<double>(Clock::now() - process_start()).count();
    const std::string table = timing_.table(world_, total);
    engine_.backend().synchronize(*engine_.communication);
    log::line(table);
    return code;
}

void Trainer::one_step() {
    const auto start = Clock::now();
    StepWork work = std::move(next_);
    prepare_next();
    if (targets_ > 0) forward_backward(work);
    if (read_step_ > progress_.step + 1) next_ = take_next();
    const double rate = learning_rate(settings_.optimizer, progress_.step, length_.steps);
    last_vote_ = vote();
    double norm = 0;
    if (targets_ > 0) {
        norm = std::sqrt(std::accumulate(last_vote_.squares.begin(), last_vote_.squares.end(), 0.0));
        if (!last_vote_.finite()) fail_non_finite(last_vote_);
        apply(norm, rate);
    } else {
        warn_of_no_targets(work);
    }
    const std::int64_t first_position = progress_.position;
    ++progress_.step;
    progress_.position += static_cast<std::int64_t>(work.documents.size());
    progress_.epoch = epoch_of(first_position);
    step_seconds_ = std::chrono::duration<double>(Clock::now() - start).count();
    report_step(work, last_vote_, norm, rate, step_seconds_);
    report_device(last_vote_);
    progress_.epoch = epoch_of(progress_.position);
    targets_ = last_vote_.next_targets;
}

/// All micro-batches of this rank; gradients are summed over ranks unit by unit behind the last one.
void Trainer::forward_backward(const StepWork& work) {
    Backend& backend = engine_.backend();
    {
        const Timing::Scope scope(timing_, Phase::compute);
        backend.zero(*engine_.compute, engine_.loss_sum(), sizeof(double));
        engine_.state->begin_step();
        const auto scale = static_cast<float>(1.0 / targets_);
        const StreamGuard guard(backend, engine_.copies());  // work dies with an exception: what is enqueued may still read it
        for (std::size_t m = 0; m < work.micro_batches.size(); ++m) {
            engine_.state->begin_micro_step(m + 1 == work.micro_batches.size());
            engine_.decoder->train(engine_.buffers->upload(work.micro_batches[m]), scale, engine_.loss_sum());
        }
        backend.synchronize(*engine_.compute);
    }
    const Timing::Scope scope(timing_, Phase::communication);
    engine_.state->finish_gradients();
    backend.synchronize(*engine_.communication);
}

StepVote Trainer::vote() {
    Backend& backend = engine_.backend();
    StepVote mine;
    mine.squares.assign(static_cast<std::size_t>(inputs_.layout->unit_count()), 0.0);
    if (targets_ > 0) {
        const Timing::Scope scope(timing_, Phase::optimizer);
        const StreamGuard guard(backend, *engine_.compute);  // results go to `mine`
        engine_.state->sum_squares(engine_.squares());
        backend.copy_to_host(*engine_.compute, &mine.loss_sum, engine_.loss_sum(), sizeof(double));
        backend.copy_to_host(*engine_.compute, mine.squares.data(), engine_.squares(), mine.squares.size() * sizeof(double));
        backend.synchronize(*engine_.compute);
    }
    mine.next_targets = static_cast<double>(next_.my_targets);
    mine.memory_bytes = static_cast<double>(backend.peak_memory_bytes());
    if (engine_.monitor && health_due_) add_health(mine);
    // not in every step: the driver answers in milliseconds
    mine.health_due = Clock::now() - health_read_ >= std::chrono::seconds(10) ? 1 : 0;
    mine.stop_signal = StopSignals::received();
    if (job_end_) {
        // what is still to come before the end: one more step and the checkpoint, with room for a slow file system
        const double needed = 15 + 3 * step_seconds_ + 2 * checkpoint_seconds_ + validation_seconds_;
        mine.time_is_up = static_cast<double>(std::time(nullptr)) + needed >= *job_end_ ? 1 : 0;
    }
    const double since_saved = std::chrono::duration<double>(Clock::now() - saved_at_).count();
    mine.checkpoint_due = settings_.checkpoint.every_seconds > 0 && since_saved >= settings_.checkpoint.every_seconds ? 1 : 0;
    const Timing::Scope scope(timing_, Phase::communication);
    return decide(world_, mine);
}

void Trainer::add_health(StepVote& vote) {
    health_read_ = Clock::now();
    const GpuHealth health = engine_.monitor->read();
    vote.temperature_c = health.temperature_c;
    vote.power_w = health.power_w;
    if (health.throttling) vote.throttled = health.throttling->empty() ? 0 : 1;
    vote.ecc_errors = static_cast<double>(health.ecc_errors);
    const std::string ails = ailments_.news(health);
    if (!ails.empty()) log::warning_of_any_rank(fmt::format("the GPU of rank {} (host {}) {}", world_.rank(), host_name(), ails));
}

/// Memory as planned and as the driver shows it, and how the GPUs fare, where the ranks looked in this step.
void Trainer::report_device(const StepVote& vote) {
    if (!engine_.device.gpu || !std::exchange(health_due_, vote.health_due > 0)) return;
    JsonLine line("device");
    line.add("step", progress_.step)
        .add("memory_bytes", static_cast<std::int64_t>(vote.memory_bytes))
        .add("planned_bytes", static_cast<std::int64_t>(engine_.largest_plan));
    const auto add = [&](const char* name, double value) { value < 0 ? line.add_null(name) : line.add(name, value); };
    add("throttled", vote.throttled);
    add("temperature_c", vote.temperature_c);
    add("power_w", vote.power_w);
    add("ecc_errors", vote.ecc_errors);
    record(line);
}

void Trainer::apply(double norm, double rate) {
    const Timing::Scope scope(timing_, Phase::optimizer);
    ++progress_.optimizer_steps;
    engine_.state->update(adamw_step(settings_.optimizer, rate, clip_factor(settings_.optimizer, norm), progress_.optimizer_steps));
    engine_.backend().synchronize(*engine_.compute);
}

/// Every rank sees the same vote, so that all of them throw this in the same step.
void Trainer::fail_non_finite(const StepVote& vote) {
    std::string units;
    std::size_t bad = 0;
    for (std::size_t u = 0; u < vote.squares.size(); ++u)
        if (!std::isfinite(vote.squares[u])) {
            units += (bad++ > 0 ? ", " : "") + inputs_.layout->units()[u].name;
        }
    if (bad == vote.squares.size() && bad > 1) units = "all units";
    const std::int64_t step = progress_.step + 1;
    const std::string what = std::isfinite(vote.loss_sum) ? "a gradient is not finite"
                             : bad > 0                    ? "loss and gradient are not finite"
                                                          : "the loss is not finite";
    record(JsonLine("step")
               .add("step", step)
               .add("epoch", epoch_of(progress_.position))
               .add("loss", vote.loss_sum / targets_)
               .add_null("grad_norm")
               .add("lr", learning_rate(settings_.optimizer, progress_.step, length_.steps))
               .add("targets", static_cast<std::int64_t>(targets_)));
    record(JsonLine("stop")
               .add("step", step)
               .add("reason", what)
               .add("units", units)
               .add("exit", static_cast<std::int64_t>(ExitCode::non_finite)));
    throw AgreedError(
        ExitCode::non_finite,
        fmt::format(
            "step {}: {}{}; nothing of this step was applied, {}. A lower optimizer.learning_rate, more optimizer.warmup_steps or "
            "precision.compute = fp32 may help",
            step, what, bad > 0 ? fmt::format(" (units: {})", units) : "",
            saved_step_ >= 0 ? fmt::format("the newest checkpoint is {}", set_name(saved_step_)) : "no checkpoint was written yet"));
}

void Trainer::validate() {
    validated_step_ = progress_.step;
    const TokenGroup* group = inputs_.tokens->validation();
    if (group == nullptr) return;
    const Timing::Scope scope(timing_, Phase::evaluation);
    const auto start = Clock::now();
    const EvaluationResult result =
        evaluate(*engine_.decoder, engine_.backend(), *engine_.compute, *engine_.communication, *engine_.buffers, world_, *group,
                 engine_.budgets, settings_.evaluation.documents, engine_.loss_sum());
    validation_seconds_ = std::chrono::duration<double>(Clock::now() - start).count();
    record(validation_line(progress_.step, result));
    log::line(fmt::format("validation after step {}: loss {:.5f}, perplexity {:.2f}, {} targets", progress_.step, result.loss,
                          result.perplexity, result.targets));
}

bool Trainer::checkpoint_due() const {
    const bool by_steps = settings_.checkpoint.every_steps > 0 && progress_.step % settings_.checkpoint.every_steps == 0;
    return by_steps || last_vote_.checkpoint_due > 0;
}

void Trainer::checkpoint() {
    const Timing::Scope scope(timing_, Phase::checkpoint);
    // a rank that owns nothing would wait for the others' agreement without looking after its collectives
    engine_.backend().synchronize(*engine_.communication);
    const CheckpointReport report = write_checkpoint(context_, progress_, *engine_.state, host_);
    saved_step_ = progress_.step;
    saved_at_ = Clock::now();
    checkpoint_seconds_ = report.seconds;
    record(JsonLine("checkpoint")
               .add("step", progress_.step)
               .add("path", report.folder.string())
               .add("bytes", static_cast<std::int64_t>(report.bytes))
               .add("write_s", report.seconds)
               .add("stall_s", report.seconds));
    log::line(fmt::format("checkpoint {} ({:.1f} MB in {:.2f} s)", report.folder.string(), static_cast<double>(report.bytes) / 1e6,
                          report.seconds));
}

std::optional<std::string> Trainer::reason_to_stop() const {
    if (last_vote_.stop_signal > 0) return fmt::format("signal {}", static_cast<int>(last_vote_.stop_signal));
    if (last_vote_.time_is_up > 0) return "the job's time is nearly up";
    return std::nullopt;
}

void Trainer::warn_of_no_targets(const StepWork& work) const {
    std::string list;
    for (std::size_t i = 0; i < work.documents.size() && i < 64; ++i) list += (i > 0 ? ", " : "") + std::to_string(work.documents[i]);
    if (work.documents.size() > 64) list += ", ...";
    log::warning(fmt::format("step {}: none of its {} documents has a target (documents {}); weights and optimizer stay as they are",
                             progress_.step + 1, work.documents.size(), list));
}

void Trainer::report_step(const StepWork& work, const StepVote& vote, double norm, double rate, double seconds) {
    const StepReport report{progress_.step,
                            length_.steps,
                            progress_.epoch,
                            targets_ > 0 ? std::optional(vote.loss_sum / targets_) : std::nullopt,
                            norm,
                            rate,
                            static_cast<std::int64_t>(targets_),
                            work.tokens,
                            static_cast<std::int64_t>(work.documents.size()),
                            targets_ > 0 ? static_cast<std::int64_t>(work.micro_batches.size()) : 0,
                            seconds,
                            static_cast<std::int64_t>(vote.memory_bytes)};
    record(step_line(report));
    log::progress(progress_text(report, length_.end));
    if (!log::stdout_is_terminal() && progress_.step % settings_.run.log_every == 0) log::line(progress_text(report, length_.end));
}

/// Writing fails on one rank only: the others learn it at once.
void Trainer::record(const JsonLine& line) {
    collectively(world_, [&] {
        if (world_.rank() == 0) metrics_.append(line);
    });
}

}  // namespace sherd
