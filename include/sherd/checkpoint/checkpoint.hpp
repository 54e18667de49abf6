#pragma once
/// Writing and reading sets: directories that are whole or absent, in global parameter coordinates.
#include "sherd/checkpoint/manifest.hpp"
#include "sherd/checkpoint/sets.hpp"
#include "sherd/comm/communicator.hpp"
#include "sherd/io/weight_source.hpp"
#include "sherd/sharding/training_state.hpp"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace sherd {

/// What every set of a run has in common.
struct CheckpointContext {
    std::filesystem::path directory;  ///< of the run
    std::string config, deck;
    InputDigests inputs;
    std::vector<DType> source_types;  ///< by FlatLayout::places()
    std::vector<RideAlong> files;     ///< on rank 0; others may leave it empty
    std::int64_t keep = 2;
};

/// What writing a set took.
struct CheckpointReport {
    std::filesystem::path folder;
    std::uint64_t bytes = 0;  ///< of all ranks' files and the manifest
    double seconds = 0;
};

/// Collective. Every rank writes what it owns into `.step-N.tmp-JOB/`; when all have confirmed, rank 0 writes the manifest, renames, and
/// moves `latest`; then older sets beyond `keep` go. Whatever fails, on whichever rank: AgreedError, and the sets before are untouched.
CheckpointReport write_checkpoint(const CheckpointContext& context, const Progress& progress, TrainingState& state,
                                  Communicator& communicator);

/// Reads masters and moments of a set into the state; each rank reads only what it holds. Not collective. Throws InputError.
void read_checkpoint(const FoundSet& set, TrainingState& state);

/// A set as a source of weights: masters, seen in the types that they were imported with.
std::unique_ptr<WeightSource> open_checkpoint(const std::filesystem::path& path);

}  // namespace sherd
