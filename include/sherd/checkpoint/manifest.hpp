#pragma once
/// What a checkpoint says of itself (docs/formats.md): everything but the numbers.
#include "sherd/io/digest.hpp"
#include "sherd/tensor/dtype.hpp"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace sherd {

/// Position of a run: with it and the states, training goes on as if it had never stopped.
struct Progress {
    std::int64_t step = 0;             ///< optimizer steps taken
    std::int64_t position = 0;         ///< documents consumed, over epochs (data/order.hpp)
    std::int64_t epoch = 0;            ///< of the next document
    std::int64_t optimizer_steps = 0;  ///< AdamW's counter: steps that had targets
};

/// Content of the inputs, so that a resume on other data is noticed whatever their paths and times.
struct InputDigests {
    Digest weights, train, validation;
};

struct ManifestParameter {
    std::string name;
    std::vector<std::int64_t> shape;
    DType source;  ///< type that it was imported with; an export's default
};

/// Elements [begin, end) of a flattened parameter lie in a rank's file, datasets "STATE/NAME" of exactly these elements.
struct ManifestPiece {
    std::int32_t parameter, rank_file;
    std::int64_t begin, end;
};

struct RankFile {
    std::string name;
    std::uint64_t bytes;
};

struct RideAlong {
    std::string name;
    std::vector<std::uint8_t> bytes;
};

struct Manifest {
    Progress progress;
    std::string config, deck;
    InputDigests inputs;
    std::int32_t world_size = 1;
    std::vector<ManifestParameter> parameters;
    std::vector<ManifestPiece> pieces;  ///< sorted by (parameter, begin); they cover every parameter once
    std::vector<RankFile> rank_files;
};

/// Names of the states' groups: "parameters", "exp_avg", "exp_avg_sq".
extern const char* const state_groups[3];

/// Writes `folder`/manifest.h5 with virtual datasets that show whole tensors. Throws InputError.
void write_manifest(const std::filesystem::path& folder, const Manifest& manifest, const std::vector<RideAlong>& files);

/// Reads and checks a set: the manifest is whole, its pieces cover every parameter once, every rank file is there with its size.
/// Throws InputError naming what is wrong.
Manifest read_manifest(const std::filesystem::path& folder);

}  // namespace sherd
