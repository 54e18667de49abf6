#include "data_files.hpp"

#include "sherd/data/token_file.hpp"

#include <algorithm>
#include <numeric>

namespace sherd {
namespace {

using namespace test;

/// Three documents of 3, 1 and 4 tokens.
GroupSpec small_group() {
    return {{5, 6, 7, 8, 9, 10, 11, 12}, {0, 3, 4, 8}, std::nullopt, DType::u16, DType::u64};
}

TEST(TokenFile, ReadsDocuments) {
    const TokenFolder folder;
    for (const DType type : {DType::u16, DType::u32}) {
        GroupSpec group = small_group();
        group.token_type = type;
        const TokenFile file(write_file(folder / "t.h5", group, 131), 0);
        EXPECT_EQ(file.vocabulary(), 131);
        EXPECT_EQ(file.train().name(), "train");
        ASSERT_EQ(file.train().documents(), 3);
        EXPECT_EQ(file.train().length(2), 4);
        const Document last = file.train().read(2);
        EXPECT_EQ(last.index, 2);
        EXPECT_EQ(last.tokens, (std::vector<std::int32_t>{9, 10, 11, 12}));
        EXPECT_EQ(last.is_target, (std::vector<std::uint8_t>{0, 1, 1, 1}));
        EXPECT_EQ(last.targets(), 3);
        EXPECT_EQ(file.train().read(1).targets(), 0);
        EXPECT_EQ(file.validation(), nullptr);
        expect_input_error([&] { file.train().read(3); }, {"t.h5", "train", "3 documents", "document 3"});
        expect_input_error([&] { file.train().read(-1); }, {"document -1"});
    }
}

TEST(TokenFile, FirstTokenIsNoTargetWhateverTheMaskSays) {  // case C15
    const TokenFolder folder;
    GroupSpec group = small_group();
    group.mask = {1, 0, 1, 1, 1, 1, 0, 0};
    const TokenFile file(write_file(folder / "t.h5", group), 0);
    EXPECT_EQ(file.vocabulary(), -1);
    EXPECT_EQ(file.train().read(0).is_target, (std::vector<std::uint8_t>{0, 0, 1}));
    EXPECT_EQ(file.train().read(1).is_target, (std::vector<std::uint8_t>{0}));
    EXPECT_EQ(file.train().read(2).is_target, (std::vector<std::uint8_t>{0, 1, 0, 0}));
    EXPECT_EQ(file.train().scan(13, 0).targets, 2);
}

TEST(TokenFile, ValidationMayBeThereOrEmpty) {  // case C24
    const TokenFolder folder;
    const GroupSpec one{{1, 2}, {0, 2}, std::nullopt, DType::u16, DType::u64};
    const TokenFile file(write_file(folder / "t.h5", small_group(), -1, one), 0);
    ASSERT_NE(file.validation(), nullptr);
    EXPECT_EQ(file.validation()->documents(), 1);
    EXPECT_EQ(file.validation()->scan(3, 0).targets, 1);
    for (const std::vector<std::uint64_t>& offsets : {std::vector<std::uint64_t>{0}, std::vector<std::uint64_t>{}}) {
        const GroupSpec none{{}, offsets, std::nullopt, DType::u16, DType::u64};
        EXPECT_EQ(TokenFile(write_file(folder / "t.h5", small_group(), -1, none), 0).validation(), nullptr);
    }
}

TEST(TokenFile, CutsLongDocumentsAndCountsThem) {  // case C25
    const TokenFolder folder;
    GroupSpec group{std::vector<std::uint32_t>(900, 3), {0, 700, 800, 900}, std::nullopt, DType::u16, DType::u64};
    const auto path = write_file(folder / "t.h5", group);
    const GroupFacts whole = TokenFile(path, 0).train().scan(512, 512);
    EXPECT_EQ(whole.tokens, 900);
    EXPECT_EQ(whole.targets, 897);
    EXPECT_EQ(whole.longest, 700);
    EXPECT_EQ(whole.longest_index, 0);
    EXPECT_EQ(whole.cut_documents, 0);
    EXPECT_EQ(whole.over_positions, 1);

    const TokenFile cut(path, 512);
    const GroupFacts facts = cut.train().scan(512, 512);
    EXPECT_EQ(facts.documents, 3);
    EXPECT_EQ(facts.tokens, 712);
    EXPECT_EQ(facts.targets, 709);
    EXPECT_EQ(facts.longest, 512);
    EXPECT_EQ(facts.cut_documents, 1);
    EXPECT_EQ(facts.cut_tokens, 188);
    EXPECT_EQ(facts.over_positions, 0);
    EXPECT_EQ(cut.train().length(0), 512);
    EXPECT_EQ(cut.train().read(0).tokens.size(), 512u);
    EXPECT_EQ(TokenFile(path, 4096).train().scan(512, 512).over_positions, 1);
    EXPECT_THROW(TokenFile(path, -1), UsageError);
}

TEST(TokenFile, ScanAgreesWithReadingAcrossSlices) {
    const TokenFolder folder;
    GroupSpec group;
    const std::int64_t n = 2'500'000;  // more than two slices, documents across their borders
    for (std::int64_t i = 0; i < n; ++i) group.tokens.push_back(static_cast<std::uint32_t>(i * 31 % 5003));
    group.mask = std::vector<std::uint8_t>(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) (*group.mask)[static_cast<std::size_t>(i)] = i % 7 < 3;
    for (std::int64_t at = 0, step = 1; at < n; at += step, step = step * 7 % 100'003 + 1)
        group.offsets.push_back(static_cast<std::uint64_t>(at));
    group.offsets.push_back(static_cast<std::uint64_t>(n));
    for (const std::int64_t max_sequence : {0, 1000}) {
        const TokenFile file(write_file(folder / "t.h5", group), max_sequence);
        const GroupFacts facts = file.train().scan(5003, 0);
        std::int64_t tokens = 0, targets = 0;
        for (std::int64_t i = 0; i < facts.documents; ++i) {
            const Document document = file.train().read(i);
            tokens += static_cast<std::int64_t>(document.tokens.size());
            targets += document.targets();
            ASSERT_EQ(document.tokens.back(),
                      static_cast<std::int32_t>(group.tokens[group.offsets[static_cast<std::size_t>(i)] + document.tokens.size() - 1]));
        }
        EXPECT_EQ(facts.tokens, tokens);
        EXPECT_EQ(facts.targets, targets);
        EXPECT_EQ(facts.tokens + facts.cut_tokens, n);
    }
}

TEST(TokenFile, ChecksIdsAgainstBothLimits) {  // case C13
    const TokenFolder folder;
    GroupSpec group = small_group();
    group.tokens[6] = 119;
    EXPECT_EQ(TokenFile(write_file(folder / "a.h5", group, 120), 0).train().scan(131, 0).tokens, 8);
    group.tokens[6] = 130;
    EXPECT_EQ(TokenFile(write_file(folder / "b.h5", group, 140), 0).train().scan(131, 0).tokens, 8);
    group.tokens[6] = 131;
    expect_input_error([&] { TokenFile(write_file(folder / "c.h5", group, 140), 0).train().scan(131, 0); },
                       {"c.h5", "'train/tokens'", "index 6", "id 131", "less than 131", "the model's vocabulary"});
    expect_input_error([&] { TokenFile(write_file(folder / "d.h5", group, 120), 0).train().scan(200, 0); },
                       {"d.h5", "index 6", "id 131", "less than 120", "vocab_size"});
    group.token_type = DType::u32;
    group.tokens[7] = 4'000'000'000;
    const TokenFile file(write_file(folder / "e.h5", group), 0);
    expect_input_error([&] { file.train().read(2); }, {"index 7", "4000000000"});  // never negative, even unscanned
}

TEST(TokenFile, FullyMaskedDocumentsAreFineAGroupWithoutTargetsIsNot) {  // case C15
    const TokenFolder folder;
    GroupSpec group = small_group();
    group.mask = {0, 0, 0, 1, 0, 0, 0, 1};
    EXPECT_EQ(TokenFile(write_file(folder / "t.h5", group), 0).train().scan(13, 0).targets, 1);
    expect_input_error([&] { TokenFile(folder / "t.h5", 3).train().scan(13, 0); }, {"t.h5", "train", "no target", "max_sequence = 3"});
    group.mask = {1, 0, 0, 1, 1, 0, 0, 0};  // ones on first tokens only
    expect_input_error([&] { TokenFile(write_file(folder / "t.h5", group), 0).train().scan(13, 0); }, {"t.h5", "no target", "loss_mask"});
    group.mask = {0, 0, 0, 0, 0, 0, 2, 1};
    expect_input_error([&] { TokenFile(write_file(folder / "t.h5", group), 0).train().scan(13, 0); },
                       {"t.h5", "'train/loss_mask'", "index 6", "value 2", "0 or 1"});
}

TEST(TokenFile, RefusesMalformedFiles) {
    const TokenFolder folder;
    const auto refuse = [&](const GroupSpec& group, std::initializer_list<std::string> parts) {
        const auto path = write_file(folder / "bad.h5", group);
        expect_input_error([&] { const TokenFile file(path, 0); }, parts);
    };
    const auto with_offsets = [](std::vector<std::uint64_t> offsets) {
        GroupSpec group = small_group();
        group.offsets = std::move(offsets);
        return group;
    };
    const std::string offsets = "'train/doc_offsets'";
    refuse(with_offsets({1, 3, 8}), {"bad.h5", offsets, "index 0", "offset 1", "expected 0"});
    refuse(with_offsets({0, 5, 3, 8}), {offsets, "index 2", "offset 3 after 5"});
    refuse(with_offsets({0, 3, 3, 8}), {offsets, "index 2", "document 1 has no token", "both 3"});
    refuse(with_offsets({0, 3, 7}), {offsets, "index 2", "last offset is 7", "expected 8", "'train/tokens'"});
    refuse(with_offsets({0, 3, 9}), {offsets, "index 2", "offset 9", "at most 8"});
    refuse(with_offsets({0, 3, 18446744073709551615u}), {offsets, "index 2", "18446744073709551615"});
    refuse(with_offsets({}), {offsets, "empty"});
    refuse({{}, {0}, std::nullopt, DType::u16, DType::u64}, {"bad.h5", "'train' has no document"});

    GroupSpec group = small_group();
    group.mask = {1, 1, 1};
    refuse(group, {"bad.h5", "'train/loss_mask'", "3 elements", "expected 8", "'train/tokens'"});
    group = small_group();
    group.token_type = DType::i32;
    refuse(group, {"'train/tokens'", "int32", "uint16 or uint32"});
    group = small_group();
    group.offset_type = DType::f64;
    refuse(group, {offsets, "fp64", "uint64"});
    group = small_group();
    group.offsets = {0, 18446744073709551615u, 8};
    group.offset_type = DType::i64;
    refuse(group, {offsets, "index 1", "offset -1"});
}

TEST(TokenFile, SignedOffsetsAreAccepted) {
    const TokenFolder folder;
    GroupSpec group = small_group();
    group.offset_type = DType::i64;
    EXPECT_EQ(TokenFile(write_file(folder / "t.h5", group), 0).train().length(2), 4);
}

TEST(TokenFile, RefusesOtherFilesAndMissingParts) {
    const TokenFolder folder;
    expect_input_error([&] { const TokenFile file(folder / "absent.h5", 0); }, {"absent.h5"});
    const auto make = [&](const std::string& name, auto fill) {
        io::HdfFile file = io::HdfFile::create(folder / name);
        fill(file);
        file.close();
        return folder / name;
    };
    const auto no_train = make("a.h5", [](io::HdfFile& file) { write_header(file); });
    expect_input_error([&] { const TokenFile file(no_train, 0); }, {"a.h5", "no group 'train'"});
    const auto no_offsets = make("b.h5", [](io::HdfFile& file) {
        write_header(file);
        write_values(file, "train/tokens", DType::u16, std::vector<std::uint16_t>{1, 2});
    });
    expect_input_error([&] { const TokenFile file(no_offsets, 0); }, {"b.h5", "train/doc_offsets"});
    const auto no_header = make("c.h5", [](io::HdfFile& file) { write_group(file, "train", small_group()); });
    expect_input_error([&] { const TokenFile file(no_header, 0); }, {"c.h5", "sherd.kind"});
    const auto two_dimensions = make("d.h5", [](io::HdfFile& file) {
        write_header(file);
        file.create_dataset("train/tokens", {2, 4}, DType::u16);
        write_values(file, "train/doc_offsets", DType::u64, std::vector<std::uint64_t>{0, 8});
    });
    expect_input_error([&] { const TokenFile file(two_dimensions, 0); }, {"d.h5", "'train/tokens'", "[2, 4]", "one dimension"});
    expect_input_error([&] { const TokenFile file(write_file(folder / "e.h5", small_group(), 0), 0); }, {"e.h5", "vocab_size", "0"});
}

}  // namespace
}  // namespace sherd
