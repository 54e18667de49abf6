#pragma once
/// Everything a run reads before its first step, opened, checked and agreed on by all ranks.
#include "sherd/checkpoint/manifest.hpp"
#include "sherd/comm/session.hpp"
#include "sherd/data/token_file.hpp"
#include "sherd/io/weight_source.hpp"
#include "sherd/model/config.hpp"
#include "sherd/sharding/flat_layout.hpp"
#include "sherd/sharding/training_state.hpp"
#include "sherd/train/settings.hpp"

#include <memory>
#include <optional>
#include <vector>

namespace sherd {

/// A weights file, a Hugging Face folder or a checkpoint.
std::unique_ptr<WeightSource> open_model(const std::string& path);

struct Inputs {
    std::unique_ptr<WeightSource> weights;
    ModelConfig config;
    std::unique_ptr<FlatLayout> layout;
    std::unique_ptr<TokenFile> tokens;
    GroupFacts train;
    std::optional<GroupFacts> validation;  ///< nothing where there is no validation group
    InputDigests digests;                  ///< made where `with_digests`
    std::vector<DType> source_types;       ///< of the parameters, by layout place

    /// Longest document of any group, after cutting.
    std::int64_t longest() const noexcept;
};

/// Collective. Opens weights and tokens, checks them, and scans the groups needed; notices (cut documents, positions, vocabulary) go to the
/// log. Ranks compare binary, deck and inputs. Throws AgreedError: usage, environment (a difference), input.
Inputs open_inputs(const Settings& settings, const Session& session, Communicator& world, bool training);

/// Loads the parameters into the state, refusing NaN and infinity. Not collective. Throws InputError naming tensor and element.
void load_weights(const Inputs& inputs, TrainingState& state);

}  // namespace sherd
