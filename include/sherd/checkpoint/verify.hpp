#pragma once
/// Whether a set holds what its manifest promises.
#include "sherd/checkpoint/sets.hpp"

#include <cstdint>

namespace sherd {

/// Reads every piece of every state of a set: it is in its rank file as fp32 of the promised length, every element is finite and no
/// second moment is negative; and the manifest shows each whole tensor in its shape. Returns the number of elements read, of all states.
/// Throws InputError naming file, dataset and element.
std::int64_t verify_set(const FoundSet& set);

}  // namespace sherd
