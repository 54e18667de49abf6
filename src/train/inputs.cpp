#include "sherd/train/inputs.hpp"

#include "train/agreement.hpp"

#include "sherd/checkpoint/checkpoint.hpp"
#include "sherd/model/parameters.hpp"
#include "sherd/runtime/error.hpp"
#include "sherd/runtime/log.hpp"

#include <algorithm>
#include <cmath>

namespace sherd {

namespace {

constexpr std::int64_t piece_elements = 4 << 20;

void remark_on_group(const TokenGroup& group, const GroupFacts& facts, const Inputs& inputs, const Settings& settings) {
    const std::string name = fmt::format("{}, group '{}'", settings.data.tokens, group.name());
    if (facts.cut_documents > 0)
        log::notice(fmt::format("{}: {} documents are longer than data.max_sequence = {} and were cut; {} tokens are left out", name,
                                facts.cut_documents, settings.data.max_sequence, facts.cut_tokens));
    if (facts.over_positions > 0)
        log::warning(
            fmt::format("{}: {} documents are longer than the model's max_position_embeddings = {} and are used whole; set "
                        "data.max_sequence to cut them",
                        name, facts.over_positions, inputs.config.max_positions));
}

void open_files(const Settings& settings, bool training, Inputs& in) {
    in.weights = open_model(settings.model.weights);
    in.config = parse_model_config(in.weights->config(), in.weights->path());
    check_parameters(in.config, *in.weights);
    in.layout = std::make_unique<FlatLayout>(parameter_units(in.config));
    for (const ParameterPlace place : in.layout->places())
        in.source_types.push_back(in.weights->find(in.layout->at(place).spec.name)->dtype);
    in.tokens = std::make_unique<TokenFile>(settings.data.tokens, settings.data.max_sequence);
    const std::int64_t named = in.tokens->vocabulary();
    if (named >= 0 && named != in.config.vocabulary)
        log::notice(fmt::format("{}: vocab_size is {}, the model's embedding has {} rows; nothing is resized", settings.data.tokens, named,
                                in.config.vocabulary));
    if (training) {
        in.train = in.tokens->train().scan(in.config.vocabulary, in.config.max_positions);
        remark_on_group(in.tokens->train(), in.train, in, settings);
    }
    if (const TokenGroup* validation = in.tokens->validation()) {
        in.validation = validation->scan(in.config.vocabulary, in.config.max_positions);
        remark_on_group(*validation, *in.validation, in, settings);
    } else if (!training) {
        throw InputError("{}: no group 'validation' with documents, which eval needs", settings.data.tokens);
    } else if (settings.evaluation.every > 0) {
        log::notice(fmt::format("{}: no validation documents; evaluation.every has no effect", settings.data.tokens));
    }
}

}  // namespace

std::unique_ptr<WeightSource> open_model(const std::string& path) {
    return names_a_set(path) ? open_checkpoint(path) : open_weights(path);
}

std::int64_t Inputs::longest() const noexcept {
    return std::max(train.longest, validation ? validation->longest : 0);
}

Inputs open_inputs(const Settings& settings, const Session& session, Communicator& world, bool training) {
    Inputs in;
    compare_programs(settings, world);
    collectively(world, [&] { open_files(settings, training, in); });
    in.digests = compare_inputs(settings, in, session.topology(), world, training);
    return in;
}

void load_weights(const Inputs& inputs, TrainingState& state) {
    std::vector<float> values;
    for (const ParameterPlace place : inputs.layout->places()) {
        const FlatParameter& p = inputs.layout->at(place);
        const TensorInfo& tensor = *inputs.weights->find(p.spec.name);
        for (const Interval& interval : state.wanted(StateKind::master, place.unit)) {
            const Interval part = intersect(interval, p.interval());
            for (std::int64_t at = part.begin - p.begin; at < part.end - p.begin; at += piece_elements) {
                const std::int64_t n = std::min(piece_elements, part.end - p.begin - at);
                values.resize(static_cast<std::size_t>(n));
                inputs.weights->read_float(tensor, at, n, values.data());
                const auto bad = std::find_if(values.begin(), values.end(), [](float x) { return !std::isfinite(x); });
                if (bad != values.end())
                    throw InputError("{}: element {} is {}; weights must be finite", inputs.weights->describe(tensor),
                                     at + (bad - values.begin()), *bad);
                state.load(StateKind::master, place, at, n, values.data());
            }
        }
    }
    state.weights_loaded();
}

}  // namespace sherd
