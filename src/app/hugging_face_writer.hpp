#pragma once
/// A model written as a Hugging Face folder: config.json, safetensors with an index where there are several, and the files beside them.
#include "sherd/io/weight_source.hpp"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace sherd::app {

/// Bytes of "5GB", "300MiB", "1.5 gb", "1000": KB, MB, GB, TB are powers of 1000, KiB, MiB, GiB, TiB of 1024. Throws UsageError.
std::uint64_t parse_size(const std::string& text);

/// Cuts the tensors, in the order given, into runs of at most `limit` bytes; a larger tensor gets a run of its own.
std::vector<std::vector<TensorInfo>> cut_into_shards(const std::vector<TensorInfo>& tensors, std::uint64_t limit);

/// Writes config, weights and files of `source` into the existing folder `folder`. Files that lie there already keep their place when
/// they are a README or a licence, and are replaced otherwise. Throws InputError. Returns the number of safetensors files.
std::size_t write_hugging_face_folder(const WeightSource& source, const std::vector<TensorInfo>& tensors, std::uint64_t shard_limit,
                                      const std::filesystem::path& folder);

}  // namespace sherd::app
