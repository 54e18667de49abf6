#include "data_files.hpp"

#include "sherd/data/token_file.hpp"

#include <stdexcept>

namespace sherd {
namespace {

using namespace test;

Digest whole(const std::filesystem::path& path, std::int64_t max_sequence = 0) {
    return TokenFile(path, max_sequence).train().digest(0, 1);
}

GroupSpec group_of(std::size_t n) {
    GroupSpec group;
    for (std::size_t i = 0; i < n; ++i) group.tokens.push_back(static_cast<std::uint32_t>(i * 7919 % 60013));
    group.offsets = {0, n / 2, n};
    return group;
}

TEST(TokenDigest, IgnoresPathWidthLayoutAndCutting) {
    const TokenFolder folder;
    GroupSpec group = group_of(1000);
    const Digest base = whole(write_file(folder / "a.h5", group));
    EXPECT_EQ(base, whole(write_file(folder / "b.h5", group, 60013)));
    EXPECT_EQ(base, whole(folder / "a.h5", 10));
    group.token_type = DType::u32;
    group.offset_type = DType::i64;
    EXPECT_EQ(base, whole(write_file(folder / "c.h5", group)));
    group.mask = std::vector<std::uint8_t>(1000, 1);  // an absent mask is one of ones
    EXPECT_EQ(base, whole(write_file(folder / "d.h5", group)));
}

TEST(TokenDigest, SeesEveryChangeOfContent) {
    const TokenFolder folder;
    const GroupSpec group = group_of(1000);
    const Digest base = whole(write_file(folder / "a.h5", group));
    GroupSpec token = group, offset = group, mask = group;
    token.tokens[999] ^= 1;
    offset.offsets[1] += 1;
    mask.mask = std::vector<std::uint8_t>(1000, 1);
    (*mask.mask)[0] = 0;
    for (const GroupSpec& changed : {token, offset, mask}) EXPECT_NE(base, whole(write_file(folder / "b.h5", changed)));
}

TEST(TokenDigest, PartsAddUp) {
    const TokenFolder folder;
    const GroupSpec group = group_of(5'000'000);  // five blocks of tokens, two of mask
    const TokenFile file(write_file(folder / "a.h5", group), 0);
    const Digest base = file.train().digest(0, 1);
    for (const std::int64_t parts : {2, 3, 7}) {
        Digest sum;
        for (std::int64_t part = 0; part < parts; ++part) sum = sum + file.train().digest(part, parts);
        EXPECT_EQ(sum, base) << parts << " parts";
    }
    EXPECT_THROW(file.train().digest(2, 2), std::invalid_argument);
}

}  // namespace
}  // namespace sherd
