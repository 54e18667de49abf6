#include "io_scratch.hpp"

#include "sherd/io/hdf5.hpp"
#include "sherd/io/safetensors.hpp"
#include "sherd/io/weight_source.hpp"

#include <utility>

using namespace sherd;
using sherd::testing::expect_error;
using sherd::testing::Scratch;
using sherd::testing::write_bytes;
namespace fs = std::filesystem;

namespace {
/// A safetensors file of fp32 tensors of shape [2] with values (first, first + 1).
void write_file(const fs::path& path, const std::vector<std::pair<std::string, float>>& tensors, DType type = DType::f32) {
    std::vector<TensorInfo> infos;
    for (const auto& [name, first] : tensors) infos.push_back({name, {2}, type});
    io::SafetensorsWriter writer(path, infos);
    for (const auto& [name, first] : tensors) {
        const float values[2] = {first, first + 1};
        writer.write(values, 2 * size_of(type));
    }
    writer.close();
}

void write_index(const fs::path& folder, const std::vector<std::pair<std::string, std::string>>& map) {
    std::string text;
    for (const auto& [name, file] : map) text += fmt::format("{}\"{}\": \"{}\"", text.empty() ? "" : ", ", name, file);
    write_bytes(folder / "model.safetensors.index.json", "{\"metadata\": {}, \"weight_map\": {" + text + "}}");
}

float first_value(const WeightSource& source, const std::string& name) {
    const TensorInfo* tensor = source.find(name);
    if (tensor == nullptr) return -1;
    float value = 0;
    source.read_float(*tensor, 0, 1, &value);
    return value;
}
}  // namespace

TEST(Folder, ReadsASingleFileAndWhatRidesAlong) {
    const Scratch scratch;
    write_bytes(scratch / "config.json", "{\"k\": 1}\n");
    write_file(scratch / "model.safetensors", {{"b", 5}, {"a", 7}});
    for (const char* name : {"tokenizer.json", "chat_template.jinja", "spiece.model", "LICENSE.txt", "training_args.bin", "notes.txt"})
        write_bytes(scratch / name, name);
    const auto source = open_weights(scratch.path());
    EXPECT_EQ(source->config(), "{\"k\": 1}\n");
    ASSERT_EQ(source->tensors().size(), 2u);
    EXPECT_EQ(source->tensors()[0].name, "b");
    EXPECT_EQ(first_value(*source, "a"), 7);
    EXPECT_EQ(source->file_names(), (std::vector<std::string>{"LICENSE.txt", "chat_template.jinja", "spiece.model", "tokenizer.json"}));
    EXPECT_EQ(source->file("spiece.model").size(), 12u);
    EXPECT_NE(source->describe(source->tensors()[0]).find("model.safetensors', tensor 'b'"), std::string::npos);
}

TEST(Folder, ReadsExactlyWhatTheIndexNames) {
    const Scratch scratch;
    write_bytes(scratch / "config.json", "{}");
    write_file(scratch / "one.safetensors", {{"a", 1}, {"b", 2}});
    write_file(scratch / "two.safetensors", {{"b", 3}});  // an older copy of b
    write_file(scratch / "three.safetensors", {{"c", 4}});
    write_file(scratch / "model.safetensors", {{"a", 90}, {"b", 90}, {"c", 90}});
    write_index(scratch.path(), {{"a", "one.safetensors"}, {"b", "one.safetensors"}, {"c", "three.safetensors"}});
    ::testing::internal::CaptureStderr();
    const auto source = open_hugging_face_folder(scratch.path());
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("read one.safetensors, three.safetensors"), std::string::npos) << said;
    EXPECT_NE(said.find("ignored model.safetensors, two.safetensors"), std::string::npos) << said;
    EXPECT_EQ(first_value(*source, "a"), 1);
    EXPECT_EQ(first_value(*source, "b"), 2);
    EXPECT_EQ(first_value(*source, "c"), 4);
}

TEST(Folder, RefusesAnIndexThatDisagrees) {
    const Scratch scratch;
    write_bytes(scratch / "config.json", "{}");
    write_file(scratch / "one.safetensors", {{"a", 1}});
    write_file(scratch / "two.safetensors", {{"b", 3}});
    const auto open = [&] { open_hugging_face_folder(scratch.path()); };
    write_index(scratch.path(), {{"a", "two.safetensors"}, {"b", "one.safetensors"}});
    expect_error(open, "'a' lies in 'two.safetensors'", "it lies in 'one.safetensors'");
    write_index(scratch.path(), {{"a", "one.safetensors"}, {"x", "two.safetensors"}});
    expect_error(open, "'x'", "'two.safetensors'", "no other file");
    write_file(scratch / "both.safetensors", {{"a", 1}, {"b", 3}});
    write_index(scratch.path(), {{"a", "both.safetensors"}});
    expect_error(open, "no entry for tensor 'b'", "'both.safetensors'");
    write_index(scratch.path(), {{"a", "gone.safetensors"}});
    expect_error(open, "'gone.safetensors'", "'a'", "it lies in 'both.safetensors'");
    write_index(scratch.path(), {{"a", "../one.safetensors"}});
    expect_error(open, "'a'", "same folder");
    for (const char* text : {"[]", "{}", "{\"weight_map\": {}}", "{\"weight_map\": {\"a\": 3}}"}) {
        write_bytes(scratch / "model.safetensors.index.json", text);
        expect_error(open, "model.safetensors.index.json");
    }
}

TEST(Folder, AStaleEntryOfATiedHeadIsANotice) {
    const Scratch scratch;
    write_bytes(scratch / "config.json", "{\"tie_word_embeddings\": true}");
    write_file(scratch / "one.safetensors", {{"model.embed_tokens.weight", 1}});
    write_index(scratch.path(), {{"model.embed_tokens.weight", "one.safetensors"}, {"lm_head.weight", "one.safetensors"}});
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(open_hugging_face_folder(scratch.path())->tensors().size(), 1u);
    EXPECT_NE(::testing::internal::GetCapturedStderr().find("lm_head.weight"), std::string::npos);
    write_bytes(scratch / "config.json", "{\"tie_word_embeddings\": false}");
    expect_error([&] { open_hugging_face_folder(scratch.path()); }, "lm_head.weight");
}

TEST(Folder, DropsRotaryBuffersAndWrapperPrefixes) {
    const Scratch scratch;
    write_bytes(scratch / "config.json", "{}");
    write_file(scratch / "model.safetensors",
               {{"module._orig_mod.a", 3}, {"module._orig_mod.model.layers.0.self_attn.rotary_emb.inv_freq", 0}});
    ::testing::internal::CaptureStderr();
    const auto source = open_hugging_face_folder(scratch.path());
    const std::string said = ::testing::internal::GetCapturedStderr();
    ASSERT_EQ(source->tensors().size(), 1u);
    EXPECT_EQ(first_value(*source, "a"), 3);
    EXPECT_NE(said.find("'module._orig_mod.'"), std::string::npos);
    EXPECT_NE(said.find("inv_freq"), std::string::npos);
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 2);
}

TEST(Folder, RefusesQuantizedFoldersAndOtherTypes) {
    const Scratch scratch;
    const auto open = [&] { open_hugging_face_folder(scratch.path()); };
    expect_error(open, "no config.json");
    write_bytes(scratch / "config.json", "{}");
    expect_error(open, "neither model.safetensors nor");
    write_file(scratch / "model.safetensors", {{"a.weight", 1}}, DType::f8_e4m3);
    expect_error(open, "'a.weight'", "fp8_e4m3", "dequantized first");
    fs::remove(scratch / "model.safetensors");
    write_file(scratch / "model.safetensors", {{"a.weight", 1}, {"a.weight_scale_inv", 1}});
    expect_error(open, "'a.weight_scale_inv'", "dequantized first");
    fs::remove(scratch / "model.safetensors");
    write_file(scratch / "model.safetensors", {{"a.weight", 1}}, DType::i16);
    expect_error(open, "'a.weight'", "int16");
    write_bytes(scratch / "config.json", "{\"quantization_config\": {\"bits\": 4}}");
    expect_error(open, "quantization_config");
    write_bytes(scratch / "config.json", "{\"a\": 1,\n \"a\": 2}");
    expect_error(open, "config.json:2:2");
}

TEST(WeightsFile, ReadsParametersConfigAndFiles) {
    const Scratch scratch;
    {
        io::HdfFile file = io::HdfFile::create(scratch / "w.h5");
        file.set_attribute("/", "sherd.kind", std::string("weights"));
        file.set_attribute("/", "sherd.version", std::int64_t{1});
        file.set_attribute("/", "config", std::string("{}"));
        const std::uint16_t half[] = {0x3e00, 0xc000}, brain[] = {0x3fc0, 0xc000};
        file.create_dataset("model/h", {2}, DType::f16);
        file.write("model/h", 0, 2, half);
        file.create_dataset("model/b", {2}, DType::bf16);
        file.write("model/b", 0, 2, brain);
        file.create_dataset("files/x", {3}, DType::u8);
        file.write("files/x", 0, 3, "abc");
        file.close();
    }
    const auto source = open_weights(scratch / "w.h5");
    EXPECT_EQ(source->tensors().size(), 2u);
    float values[2] = {};
    for (const char* name : {"h", "b"}) {
        source->read_float(*source->find(name), 0, 2, values);
        EXPECT_EQ(values[0], 1.5f);
        EXPECT_EQ(values[1], -2.0f);
    }
    EXPECT_EQ(source->file_names(), std::vector<std::string>{"x"});
    EXPECT_EQ(source->file("x"), (std::vector<std::uint8_t>{'a', 'b', 'c'}));
    EXPECT_NE(source->describe(source->tensors()[0]).find("w.h5', dataset 'model/b'"), std::string::npos);
}

TEST(WeightsFile, RefusesWhatIsMissingOrOfAnotherType) {
    const Scratch scratch;
    io::HdfFile file = io::HdfFile::create(scratch / "w.h5");
    file.set_attribute("/", "sherd.kind", std::string("weights"));
    file.set_attribute("/", "sherd.version", std::int64_t{1});
    const auto reopen = [&] {
        file.close();
        open_weights(scratch / "w.h5");
    };
    expect_error(reopen, "no 'config'");
    fs::remove(scratch / "w.h5");
    file = io::HdfFile::create(scratch / "w.h5");
    file.set_attribute("/", "sherd.kind", std::string("weights"));
    file.set_attribute("/", "sherd.version", std::int64_t{1});
    file.set_attribute("/", "config", std::string("{}"));
    file.create_dataset("model/x", {1}, DType::f64);
    expect_error(reopen, "'model/x'", "fp64");
    expect_error([&] { open_weights(scratch / "absent"); }, "does not exist");
}
