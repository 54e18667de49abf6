#include "sherd/io/digest.hpp"

#include <gtest/gtest.h>

#include <array>

namespace sherd {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
    return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(Digest, AddsPerHalf) {
    const Digest a{~std::uint64_t{0}, 1}, b{2, 3};
    EXPECT_EQ(a + b, (Digest{1, 4}));  // no carry from low to high
    EXPECT_EQ(a + b, b + a);
}

TEST(Digest, PrintsHighHalfFirst) {
    EXPECT_EQ(to_string({0xabc, 0x1}), "00000000000000010000000000000abc");
}

TEST(Digest, DependsOnContentStreamAndIndex) {
    const std::array<Digest, 5> digests{block_digest(bytes_of("token"), "tokens", 0), block_digest(bytes_of("tokem"), "tokens", 0),
                                        block_digest(bytes_of("token"), "tokens", 1), block_digest(bytes_of("token"), "mask", 0),
                                        block_digest(bytes_of("toke"), "tokens", 0)};
    for (std::size_t i = 0; i < digests.size(); ++i)
        for (std::size_t j = 0; j < i; ++j) {
            EXPECT_NE(digests[i].low, digests[j].low);
            EXPECT_NE(digests[i].high, digests[j].high);
        }
    EXPECT_EQ(digests[0], block_digest(bytes_of("token"), "tokens", 0));
}

}  // namespace
}  // namespace sherd
