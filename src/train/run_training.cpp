#include "train/engine.hpp"
#include "train/resume.hpp"
#include "train/run_directory.hpp"
#include "train/trainer.hpp"

#include "sherd/checkpoint/checkpoint.hpp"
#include "sherd/io/files.hpp"
#include "sherd/runtime/error.hpp"
#include "sherd/runtime/log.hpp"
#include "sherd/runtime/signals.hpp"
#include "sherd/train/run.hpp"

#include <filesystem>
#include <optional>

namespace sherd {

namespace {

namespace fs = std::filesystem;

RunLength run_length(const Settings& settings, const Inputs& inputs, const DocumentOrder& order) {
    const TokenGroup& group = inputs.tokens->train();
    const StepSize size{settings.batch.tokens > 0 ? 0 : settings.batch.sequences, settings.batch.tokens};
    RunLength length;
    length.steps = settings.run.steps >= 0 ? settings.run.steps
                                           : steps_in(settings.run.epochs, order, size, [&](std::int64_t i) { return group.length(i); });
    length.end = settings.run.stop_step >= 0 ? std::min(length.steps, settings.run.stop_step) : length.steps;
    return length;
}

void notice_long_warmup(const Settings& settings, const RunLength& length) {
    const OptimizerSettings& o = settings.optimizer;
    if (o.warmup_steps > 0 && o.warmup_steps >= length.steps && length.steps > 0)
        log::notice(fmt::format("optimizer.warmup_steps = {}, and the run has {} steps: the learning rate never reaches {}", o.warmup_steps,
                                length.steps, o.learning_rate));
}

int train(const Settings& settings, const TrainOptions& options, const Session& session, Communicator& host) {
    std::optional<RunDirectory> directory;
    if (!options.validate_only) {
        log::line(first_line(session));
        directory.emplace(settings.run.directory, host);
    }
    const Inputs inputs = open_inputs(settings, session, host, true);
    const DocumentOrder order(inputs.tokens->train().documents(), settings.run.seed, settings.data.shuffle);
    const RunLength length = run_length(settings, inputs, order);
    const std::optional<FoundSet> found = find_start(settings, options, inputs, host);
    const Progress start = found ? found->manifest.progress : Progress{};
    notice_long_warmup(settings, length);
    if (options.validate_only) {
        collectively(host, [&] { (void)make_budgets(settings, inputs, host.size()); });
        log::line(fmt::format("valid: {} steps over {} documents with {} tokens, {} of them targets; {}", length.steps,
                              inputs.train.documents, inputs.train.tokens, inputs.train.targets,
                              !found                     ? "starts anew"
                              : start.step >= length.end ? fmt::format("nothing left to do, its checkpoint is at step {}", start.step)
                                                         : fmt::format("resumes after step {}", start.step)));
        return 0;
    }
    if (start.step >= length.end && found) {
        log::line(fmt::format("nothing left to do: {} is at step {} and the run ends at step {}", found->folder.string(), start.step,
                              length.end));
        return 0;
    }
    Engine engine(settings, session, host, inputs, TrainingState::Purpose::training, found.has_value());
    log::line(engine.banner(settings, session, inputs));
    collectively(host, [&] {
        engine.with_memory_advice(settings, inputs, [&] {
            if (found)
                read_checkpoint(*found, *engine.state);
            else
                load_weights(inputs, *engine.state);
        });
        if (host.rank() == 0) io::write_text_atomically(fs::path(settings.run.directory) / "deck.ini", settings.text);
    });
    if (found) log::line(fmt::format("resuming {} after step {}", found->folder.string(), start.step));
    const StopSignals signals;
    return engine.with_memory_advice(settings, inputs,
                                     [&] { return static_cast<int>(Trainer(settings, inputs, engine, host, order, length, start).run()); });
}

}  // namespace

int run_training(const Settings& settings, const TrainOptions& options) {
    const Session session;
    const auto host = session.host_world();
    try {
        return train(settings, options, session, *host);
    } catch (const AgreedError& e) {
        // all ranks are here, so that MPI can be finalized in order
        if (host->rank() == 0) log::error(e.what());
        return static_cast<int>(e.exit_code());
    }
}

}  // namespace sherd
