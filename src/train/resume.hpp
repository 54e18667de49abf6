#pragma once
/// Where a run begins: anew, or at a checkpoint whose inputs and deck are compared with today's.
#include "sherd/checkpoint/sets.hpp"
#include "sherd/comm/communicator.hpp"
#include "sherd/train/inputs.hpp"
#include "sherd/train/run.hpp"

#include <optional>

namespace sherd {

/// Collective. Rank 0 looks, all ranks read the same set. Throws AgreedError: usage where checkpoint.resume = never and sets exist, or
/// where deck or inputs changed without `allow_changes`; input for a set that is damaged, of another model, or not there.
std::optional<FoundSet> find_start(const Settings& settings, const TrainOptions& options, const Inputs& inputs, Communicator& world);

}  // namespace sherd
