#include "sherd/io/digest.hpp"

#include <fmt/format.h>
#include <xxhash.h>

namespace sherd {

Digest operator+(Digest a, Digest b) noexcept {
    return {a.low + b.low, a.high + b.high};
}

std::string to_string(Digest digest) {
    return fmt::format("{:016x}{:016x}", digest.high, digest.low);
}

Digest block_digest(std::span<const std::byte> block, std::string_view stream_name, std::uint64_t block_index) noexcept {
    const XXH64_hash_t seed = XXH3_64bits_withSeed(stream_name.data(), stream_name.size(), block_index);
    const XXH128_hash_t hash = XXH3_128bits_withSeed(block.data(), block.size(), seed);
    return {hash.low64, hash.high64};
}

}  // namespace sherd
