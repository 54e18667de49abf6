#pragma once
/// Content digests that several processes compute in parts: the sum of the 128-bit XXH3 hashes of numbered blocks.
/// XXH3: https://github.com/Cyan4973/xxHash, stable since version 0.8.0.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace sherd {

/// 128 bits; guards against accidents, not against attackers.
struct Digest {
    std::uint64_t low = 0, high = 0;
    friend bool operator==(const Digest&, const Digest&) = default;
};

/// Sum modulo 2^64 of each half: parts may be added in any order, on any rank.
Digest operator+(Digest a, Digest b) noexcept;

/// 32 hexadecimal digits, the high half first.
std::string to_string(Digest digest);

/// Hash of one block; stream name and block index are its seed, so that equal blocks elsewhere do not cancel or change places.
Digest block_digest(std::span<const std::byte> block, std::string_view stream_name, std::uint64_t block_index) noexcept;

}  // namespace sherd
