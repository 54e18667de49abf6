#include "train/engine.hpp"
#include "train/evaluator.hpp"
#include "train/report.hpp"

#include "sherd/checkpoint/checkpoint.hpp"
#include "sherd/runtime/log.hpp"
#include "sherd/train/run.hpp"

namespace sherd {

namespace {

int evaluate_model(Settings settings, const Session& session, Communicator& host) {
    std::int64_t step = 0;
    log::line(first_line(session));
    collectively(host, [&] {
        if (!names_a_set(settings.model.weights)) return;
        // looked up once: a run under way may move `latest` meanwhile
        const FoundSet set = find_named_set(settings.model.weights);
        settings.model.weights = set.folder.string();
        step = set.manifest.progress.step;
    });
    const Inputs inputs = open_inputs(settings, session, host, false);
    Engine engine(settings, session, host, inputs, TrainingState::Purpose::evaluation);
    log::line(engine.banner(settings, session, inputs));
    collectively(host, [&] { engine.with_memory_advice(settings, inputs, [&] { load_weights(inputs, *engine.state); }); });
    const EvaluationResult result = engine.with_memory_advice(settings, inputs, [&] {
        return evaluate(*engine.decoder, engine.backend(), *engine.compute, *engine.communication, *engine.buffers, *engine.world,
                        *inputs.tokens->validation(), engine.budgets, settings.evaluation.documents, engine.loss_sum());
    });
    log::line(validation_line(step, result).text());
    return 0;
}

}  // namespace

int run_evaluation(const Settings& settings) {
    const Session session;
    const auto host = session.host_world();
    try {
        return evaluate_model(settings, session, *host);
    } catch (const AgreedError& e) {
        if (host->rank() == 0) log::error(e.what());
        return static_cast<int>(e.exit_code());
    }
}

}  // namespace sherd
