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

/// Values of Python's xxhash 0.8.4: xxh3_128(block, seed = xxh3_64(stream, seed = index)). Stored digests must stay comparable.
TEST(Digest, IsStable) {
    EXPECT_EQ(to_string(block_digest(bytes_of("token"), "tokens", 0)), "12cfc2e77263cb21de6959411b8dcdcc");
    std::string long_block;
    for (int i = 0; i < 20 * 256; ++i) long_block.push_back(static_cast<char>(i % 256));
    EXPECT_EQ(to_string(block_digest(bytes_of(long_block), "loss_mask", 3)), "5365e58f364c33f860cabd951e6b8618");
}

}  // namespace
}  // namespace sherd
