// Token files in compressed chunks (case C49). HDF5 is called directly: the program itself writes no such files.
#include "data_files.hpp"

#include "sherd/data/token_file.hpp"

#include <hdf5.h>

#include <algorithm>
#include <chrono>

namespace sherd {
namespace {

using namespace test;

void write_compressed(const std::filesystem::path& path, const std::string& dataset, hid_t type, hsize_t n, hsize_t chunk,
                      const void* data) {
    const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    const hid_t space = H5Screate_simple(1, &n, nullptr), creation = H5Pcreate(H5P_DATASET_CREATE), links = H5Pcreate(H5P_LINK_CREATE);
    ASSERT_GE(H5Pset_create_intermediate_group(links, 1), 0);
    ASSERT_GE(H5Pset_chunk(creation, 1, &chunk), 0);
    ASSERT_GE(H5Pset_deflate(creation, 1), 0);
    const hid_t set = H5Dcreate2(file, dataset.c_str(), type, space, links, creation, H5P_DEFAULT);
    ASSERT_GE(set, 0);
    ASSERT_GE(H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data), 0);
    H5Dclose(set);
    H5Pclose(links);
    H5Pclose(creation);
    H5Sclose(space);
    ASSERT_GE(H5Fclose(file), 0);
}

constexpr std::int64_t document_length = 50;

std::vector<std::uint16_t> ids(std::int64_t n) {
    std::vector<std::uint16_t> tokens(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::uint16_t>(i * 2654435761u >> 18 & 0x3ff);
    return tokens;
}

/// Documents of 50 tokens; chunk 0: contiguous.
std::filesystem::path write_tokens(const std::filesystem::path& path, const std::vector<std::uint16_t>& tokens, std::int64_t chunk) {
    const auto n = static_cast<std::int64_t>(tokens.size());
    {
        io::HdfFile file = io::HdfFile::create(path);
        write_header(file);
        std::vector<std::uint64_t> offsets;
        for (std::int64_t at = 0; at <= n; at += document_length) offsets.push_back(static_cast<std::uint64_t>(at));
        write_values(file, "train/doc_offsets", DType::u64, offsets);
        if (chunk == 0) write_values(file, "train/tokens", DType::u16, tokens);
        file.close();
    }
    if (chunk > 0) write_compressed(path, "train/tokens", H5T_NATIVE_UINT16, tokens.size(), static_cast<hsize_t>(chunk), tokens.data());
    return path;
}

/// Reads documents far apart from one another and checks them; seconds.
double shuffled_reads(const TokenFile& file, const std::vector<std::uint16_t>& tokens, std::int64_t reads) {
    const auto start = std::chrono::steady_clock::now();
    const std::int64_t documents = file.train().documents();
    for (std::int64_t r = 0; r < reads; ++r) {
        const Document document = file.train().read(r * 1'000'003 % documents);
        for (const std::size_t i : {std::size_t{0}, document.tokens.size() - 1})
            EXPECT_EQ(document.tokens[i], tokens[static_cast<std::size_t>(document.index * document_length) + i]);
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(CompressedTokens, OneHugeChunkIsDecompressedOnce) {
    const TokenFolder folder;
    const std::vector<std::uint16_t> tokens = ids(20'000'000);
    ::testing::internal::CaptureStderr();
    const TokenFile plain(write_tokens(folder / "plain.h5", tokens, 0), 0);
    const auto path = write_tokens(folder / "gzip.h5", tokens, 20'000'000);
    const TokenFile packed(path, 0);
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");  // it fits into memory
    const double uncompressed = shuffled_reads(plain, tokens, 200);
    const double first = shuffled_reads(packed, tokens, 1);  // decompresses the chunk
    const double others = shuffled_reads(packed, tokens, 200);
    EXPECT_LT(others, 2 * uncompressed + 2 * first);  // 200 decompressions would take 200 * first
    EXPECT_EQ(plain.train().digest(0, 1), packed.train().digest(0, 1));
}

TEST(CompressedTokens, ChunksPastTheCacheAreWarnedOfAndStillRight) {
    const TokenFolder folder;
    const std::vector<std::uint16_t> tokens = ids(1'000'000);
    const auto path = write_tokens(folder / "gzip.h5", tokens, 300'000);  // 600,000 bytes a chunk, the last one cut short
    for (const std::uint64_t cache : {std::uint64_t{0}, std::uint64_t{1'300'000}}) {
        ::testing::internal::CaptureStderr();
        const TokenFile file(path, 0, cache);
        const std::string message = ::testing::internal::GetCapturedStderr();
        for (const std::string part : {"warning", "train/tokens", "0.6 MiB", "1.9 MiB", "h5repack -l CONTI", "gzip.h5"})
            EXPECT_NE(message.find(part), std::string::npos) << "no '" << part << "' in: " << message;
        EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 1);
        shuffled_reads(file, tokens, 100);
        EXPECT_EQ(file.train().scan(1024, 0).tokens, 1'000'000);
    }
}

TEST(CompressedTokens, SmallChunksNeedNoWarning) {
    const TokenFolder folder;
    const std::vector<std::uint16_t> tokens = ids(200'000);
    ::testing::internal::CaptureStderr();
    const TokenFile file(write_tokens(folder / "gzip.h5", tokens, 10'000), 0, 50'000);
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
    shuffled_reads(file, tokens, 500);
}

TEST(CompressedTokens, OffsetsAndMasksMayBeCompressedToo) {
    const TokenFolder folder;
    const std::vector<std::uint16_t> tokens = ids(1000);
    const std::vector<std::uint64_t> offsets{0, 400, 1000}, other_offsets{0, 700, 1000};
    std::vector<std::uint8_t> mask(1000, 1);
    mask[401] = 0;
    const auto path = folder / "gzip.h5";
    {
        io::HdfFile file = io::HdfFile::create(path);
        write_header(file);
        file.close();
    }
    write_compressed(path, "train/tokens", H5T_NATIVE_UINT16, 1000, 64, tokens.data());
    write_compressed(path, "train/doc_offsets", H5T_NATIVE_UINT64, 3, 2, offsets.data());
    write_compressed(path, "train/loss_mask", H5T_NATIVE_UINT8, 1000, 100, mask.data());
    write_compressed(path, "validation/tokens", H5T_NATIVE_UINT16, 1000, 64, tokens.data());
    write_compressed(path, "validation/doc_offsets", H5T_NATIVE_UINT64, 3, 2, other_offsets.data());
    const TokenFile file(path, 0);
    EXPECT_EQ(file.train().length(0), 400);
    EXPECT_EQ(file.train().scan(1024, 0).targets, 997);
    ASSERT_NE(file.validation(), nullptr);
    EXPECT_EQ(file.validation()->length(0), 700);  // not the train group's chunk from the cache
    EXPECT_EQ(file.validation()->read(1).tokens.size(), 300u);
}

}  // namespace
}  // namespace sherd
