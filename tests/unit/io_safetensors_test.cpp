#include "io_scratch.hpp"

#include "sherd/io/safetensors.hpp"

#include <cstring>

using namespace sherd;
using io::SafetensorsFile;
using sherd::testing::expect_error;
using sherd::testing::Scratch;
using sherd::testing::write_bytes;

namespace {
std::string file_bytes(const std::string& header, std::size_t data_bytes) {
    const std::uint64_t length = header.size();
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, 8);
    bytes += header;
    for (std::size_t i = 0; i < data_bytes; ++i) bytes += static_cast<char>(i);
    return bytes;
}

/// The file of that header and so many bytes of data must be refused with a text that holds every part.
template <class... Parts>
void refuse(const std::string& header, std::size_t data_bytes, const Parts&... parts) {
    const Scratch scratch;
    write_bytes(scratch / "a.safetensors", file_bytes(header, data_bytes));
    expect_error([&] { SafetensorsFile file(scratch / "a.safetensors"); }, "a.safetensors", parts...);
}
}  // namespace

TEST(Safetensors, ReadsWhatTheFormatSays) {
    const Scratch scratch;
    write_bytes(
        scratch / "a.safetensors",
        file_bytes(R"({"__metadata__":{"format":"pt","n":3},"b":{"dtype":"U8","shape":[2,3],"data_offsets":[4,10]},)"
                   R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"e":{"dtype":"BF16","shape":[0,7],"data_offsets":[4,4]}}  )",
                   10));
    const SafetensorsFile file(scratch / "a.safetensors");
    ASSERT_EQ(file.tensors().size(), 3u);
    EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
    const TensorInfo* b = file.find("b");
    ASSERT_NE(b, nullptr);
    EXPECT_EQ(b->shape, (std::vector<std::int64_t>{2, 3}));
    unsigned char bytes[3] = {};
    file.read(*b, 1, 3, bytes);
    EXPECT_EQ(bytes[0], 5);
    EXPECT_EQ(bytes[2], 7);
    EXPECT_EQ(file.find("a")->elements(), 1);
    EXPECT_EQ(file.find("e")->elements(), 0);
    EXPECT_EQ(file.find("zzz"), nullptr);
    expect_error([&] { file.read(*b, 4, 3, bytes); }, "elements 4 to 7", "it has 6");
}

TEST(Safetensors, MetadataMayBeAbsentEmptyOrNull) {
    for (const char* metadata : {"", R"("__metadata__":{},)", R"("__metadata__":null,)"}) {
        const Scratch scratch;
        write_bytes(scratch / "a", file_bytes(fmt::format(R"({{{}"a":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}})", metadata), 1));
        EXPECT_TRUE(SafetensorsFile(scratch / "a").metadata().empty());
    }
}

TEST(Safetensors, RefusesMalformedFiles) {
    const Scratch scratch;
    write_bytes(scratch / "short", "1234567");
    expect_error([&] { SafetensorsFile file(scratch / "short"); }, "7 bytes");
    std::string huge = file_bytes("{}", 0);
    std::memset(huge.data(), 0xff, 8);
    write_bytes(scratch / "huge", huge);
    expect_error([&] { SafetensorsFile file(scratch / "huge"); }, "18446744073709551615");
    std::string past = file_bytes("{}", 0);
    past[0] = 3;
    write_bytes(scratch / "past", past);
    expect_error([&] { SafetensorsFile file(scratch / "past"); }, "length is 3", "has 2 bytes");
    expect_error([&] { SafetensorsFile file(scratch / "absent"); }, "No such file");
    expect_error([&] { SafetensorsFile file(scratch.path()); }, "no regular file");
}

TEST(Safetensors, RefusesMalformedHeaders) {
    refuse("not json", 0, ":1:1:", "'not'");
    refuse("[]", 0, "no JSON object");
    refuse(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2,
           "second time");
    refuse(R"({"a":{"dtype":"Q4","shape":[1],"data_offsets":[0,1]}})", 1, "'a'", "unknown dtype 'Q4'");
    refuse(R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1, "'a'", "-1");
    refuse(R"({"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}})", 1, "'a'", "1.5");
    refuse(R"({"a":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", 1, "'a'", "a list");
    refuse(R"({"a":{"dtype":"U8","shape":[1]}})", 1, "'a'", "no 'data_offsets'");
    refuse(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1, "'a'", "two numbers");
    refuse(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0, "'a'", "overflows");
    refuse(R"({"a":{"dtype":"F32","shape":[0,18446744073709551615],"data_offsets":[0,0]}})", 0, "'a'", "overflows");
    refuse(R"({"a":7})", 0, "'a'", "no object");
}

TEST(Safetensors, RefusesOffsetsThatDisagree) {
    refuse(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "'a'", "4 bytes", "needs 8");
    refuse(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "'a'");
    refuse(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 4, "'a'", "past the end of the file", "4 bytes of data");
    refuse(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})", 6, "'b'",
           "overlap tensor 'a'");
    refuse(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]}})", 6, "'b'",
           "hole");
    refuse(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 5, "3 bytes follow the last tensor");
}

TEST(Safetensors, WriterMakesAFileTheReaderTakes) {
    const Scratch scratch;
    const std::vector<TensorInfo> tensors{{"x", {2, 2}, DType::bf16}, {"y \"quoted\"", {3}, DType::f32}};
    const std::uint16_t x[] = {1, 2, 3, 4};
    const float y[] = {1.5f, -2.0f, 3.25f};
    io::SafetensorsWriter writer(scratch / "out", tensors);
    writer.write(x, sizeof x);
    writer.write(y, 4);
    expect_error([&] { writer.close(); }, "12 bytes", "promises 20");
    writer.write(y + 1, 8);
    writer.close();
    const SafetensorsFile file(scratch / "out");
    EXPECT_EQ(file.metadata().at("format"), "pt");
    float back[3] = {};
    file.read(*file.find("y \"quoted\""), 0, 3, back);
    EXPECT_EQ(std::memcmp(back, y, sizeof y), 0);
    EXPECT_EQ(file.find("x")->dtype, DType::bf16);
}
