#pragma once
/// Ranks that would train on different things are found before step 1.
#include "sherd/train/inputs.hpp"

namespace sherd {

/// Collective. Compares the digests of the binary and of the deck. Throws AgreedError (environment) naming what differs on which rank.
void compare_programs(const Settings& settings, Communicator& world);

/// Collective. Content digests of the inputs; ranks of a node that see the same files share the reading. Throws AgreedError (input)
/// naming which file differs on which rank.
InputDigests compare_inputs(const Settings& settings, const Inputs& inputs, const Topology& topology, Communicator& world, bool training);

}  // namespace sherd
