#include "sherd/checkpoint/verify.hpp"

#include "sherd/io/hdf5.hpp"
#include "sherd/io/weight_source.hpp"
#include "sherd/runtime/error.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace sherd {

namespace {

constexpr std::int64_t piece_elements = 4 << 20;  // 16 MiB of fp32 a call

void check_shape(const io::HdfFile& file, const std::string& dataset, const std::vector<std::int64_t>& shape) {
    const io::DatasetInfo info = file.info(dataset);
    if (info.dtype != DType::f32 || info.shape != shape)
        throw InputError("{}: dataset '{}' is {} of shape {}, expected fp32 of shape {}", file.path().string(), dataset,
                         name_of(info.dtype), to_string(info.shape), to_string(shape));
}

/// `second`: a second moment, a running mean of squares.
void check_values(const io::HdfFile& file, const std::string& dataset, std::int64_t count, bool second, std::vector<float>& values) {
    for (std::int64_t at = 0; at < count; at += piece_elements) {
        const std::int64_t n = std::min(piece_elements, count - at);
        values.resize(static_cast<std::size_t>(n));
        file.read(dataset, at, n, values.data());
        const auto bad = std::find_if(values.begin(), values.end(), [&](float x) { return !std::isfinite(x) || (second && x < 0); });
        if (bad != values.end())
            throw InputError("{}: dataset '{}', element {} is {}; expected a finite number{}", file.path().string(), dataset,
                             at + (bad - values.begin()), *bad, second ? " of at least 0" : "");
    }
}

}  // namespace

std::int64_t verify_set(const FoundSet& set) {
    const Manifest& m = set.manifest;
    const io::HdfFile manifest = io::HdfFile::open(set.folder / "manifest.h5");
    for (const char* group : state_groups)
        for (const ManifestParameter& p : m.parameters) check_shape(manifest, fmt::format("{}/{}", group, p.name), p.shape);
    std::vector<float> values;
    std::int64_t elements = 0;
    for (std::size_t f = 0; f < m.rank_files.size(); ++f) {
        const io::HdfFile file = io::HdfFile::open(set.folder / m.rank_files[f].name);
        for (int kind = 0; kind < 3; ++kind)
            for (const ManifestPiece& piece : m.pieces) {
                if (piece.rank_file != static_cast<std::int32_t>(f)) continue;
                const std::string dataset =
                    fmt::format("{}/{}", state_groups[kind], m.parameters[static_cast<std::size_t>(piece.parameter)].name);
                const std::int64_t count = piece.end - piece.begin;
                check_shape(file, dataset, {count});
                check_values(file, dataset, count, kind == 2, values);
                elements += count;
            }
    }
    return elements;
}

}  // namespace sherd
