/// make_random_model: an HDF5 weights file of a Llama with random weights, for benchmarks: matrices normal(0, 0.02), norms 1, as Hugging
/// Face transformers initialises them.
///
/// layers=N makes it as deep as that. `alike` stores one block, and the others are other names for it, as the head is for the embedding: a
/// file of a model of 8 billion parameters is then 1.5 GB and made in seconds. It trains as fast as any other, and what is alike parts with
/// the first step.
#include "tools/model_shapes.hpp"
#include "tools/tool.hpp"

#include "sherd/io/files.hpp"
#include "sherd/io/weight_source.hpp"
#include "sherd/tensor/half.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <omp.h>
#include <random>

namespace sherd::tools {
namespace {

constexpr std::int64_t slice = std::int64_t{1} << 20;
constexpr std::string_view usage = "make_random_model tiny|small|smollm2|llama1b|llama8b OUT.h5 [layers=N] [alike]";

std::string config_of(const ModelShape& s) {
    nlohmann::ordered_json config;
    config["architectures"] = {"LlamaForCausalLM"};
    config["model_type"] = "llama";
    config["vocab_size"] = s.vocabulary;
    config["hidden_size"] = s.hidden;
    config["intermediate_size"] = s.intermediate;
    config["num_hidden_layers"] = s.layers;
    config["num_attention_heads"] = s.heads;
    config["num_key_value_heads"] = s.kv_heads;
    config["head_dim"] = s.head_dim();
    config["max_position_embeddings"] = s.positions;
    config["hidden_act"] = "silu";
    config["rms_norm_eps"] = 1e-6;
    config["rope_theta"] = 10000.0;
    config["attention_bias"] = false;
    config["mlp_bias"] = false;
    config["initializer_range"] = 0.02;
    config["tie_word_embeddings"] = s.tied;
    config["bos_token_id"] = 1;
    config["eos_token_id"] = 2;
    config["torch_dtype"] = s.stored == DType::f32 ? "float32" : "bfloat16";
    return config.dump(2) + "\n";
}

/// Parameters of a block by their Hugging Face names behind the block's; those of one dimension are norms.
std::vector<TensorInfo> block_of(const ModelShape& s) {
    return {{"input_layernorm.weight", {s.hidden}, s.stored},
            {"self_attn.q_proj.weight", {s.hidden, s.hidden}, s.stored},
            {"self_attn.k_proj.weight", {s.kv_size(), s.hidden}, s.stored},
            {"self_attn.v_proj.weight", {s.kv_size(), s.hidden}, s.stored},
            {"self_attn.o_proj.weight", {s.hidden, s.hidden}, s.stored},
            {"post_attention_layernorm.weight", {s.hidden}, s.stored},
            {"mlp.gate_proj.weight", {s.intermediate, s.hidden}, s.stored},
            {"mlp.up_proj.weight", {s.intermediate, s.hidden}, s.stored},
            {"mlp.down_proj.weight", {s.hidden, s.intermediate}, s.stored}};
}

/// Numbers of a slice, the same on any number of threads.
void fill(std::vector<float>& values, std::uint64_t tensor, std::int64_t begin) {
    std::seed_seq seed{static_cast<std::uint32_t>(tensor), static_cast<std::uint32_t>(begin / slice)};
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal(0.0f, 0.02f);
    std::generate(values.begin(), values.end(), [&] { return normal(random); });
}

void write(io::HdfFile& out, const std::string& dataset, DType type, std::int64_t begin, const std::vector<float>& values) {
    const auto count = static_cast<std::int64_t>(values.size());
    if (type == DType::f32) return out.write(dataset, begin, count, values.data());
    std::vector<bfloat16> narrow(values.size());
    std::transform(values.begin(), values.end(), narrow.begin(), [](float value) { return to_bfloat16(value); });
    out.write(dataset, begin, count, narrow.data());
}

void write_parameter(io::HdfFile& out, const TensorInfo& tensor, std::uint64_t number) {
    const std::string dataset = "model/" + tensor.name;
    out.create_dataset(dataset, tensor.shape, tensor.dtype);
    const std::int64_t n = tensor.elements(), slices = (n + slice - 1) / slice;
    const std::int64_t at_a_time = omp_get_max_threads();
    std::vector<std::vector<float>> values(static_cast<std::size_t>(std::min(slices, at_a_time)));
    for (std::int64_t first = 0; first < slices; first += at_a_time) {
        const std::int64_t count = std::min(at_a_time, slices - first);
#pragma omp parallel for schedule(static)
        for (std::int64_t i = 0; i < count; ++i) {
            auto& v = values[static_cast<std::size_t>(i)];
            const std::int64_t begin = (first + i) * slice;
            v.assign(static_cast<std::size_t>(std::min(slice, n - begin)), 1.0f);
            if (tensor.shape.size() > 1) fill(v, number, begin);
        }
        for (std::int64_t i = 0; i < count; ++i)
            write(out, dataset, tensor.dtype, (first + i) * slice, values[static_cast<std::size_t>(i)]);
    }
}

/// Blocks as whole datasets or, with `alike`, as names of the first one's.
void write_blocks(io::HdfFile& out, const ModelShape& shape, bool alike) {
    std::uint64_t number = 2;
    for (std::int64_t layer = 0; layer < shape.layers; ++layer)
        for (TensorInfo tensor : block_of(shape)) {
            const std::string first = "model/model.layers.0." + tensor.name;
            tensor.name = fmt::format("model.layers.{}.{}", layer, tensor.name);
            if (alike && layer > 0)
                out.link("model/" + tensor.name, first);
            else
                write_parameter(out, tensor, number++);
        }
}

void make(const std::vector<std::string>& arguments) {
    ModelShape shape = shape_named(arguments[0]);
    bool alike = false;
    for (std::size_t i = 2; i < arguments.size(); ++i) {
        if (arguments[i] == "alike")
            alike = true;
        else if (arguments[i].starts_with("layers="))
            shape.layers = whole_number("layers", arguments[i].substr(7), 1, 10000);
        else
            throw UsageError("'{}': expected layers=N or alike; usage: {}", arguments[i], usage);
    }
    io::AtomicTarget target(arguments[1], io::AtomicTarget::Kind::file);
    io::HdfFile out = io::HdfFile::create(target.path());
    out.set_attribute("/", "sherd.kind", std::string("weights"));
    out.set_attribute("/", "sherd.version", std::int64_t{1});
    out.set_attribute("/", "config", config_of(shape));
    const std::string embedding = "model.embed_tokens.weight", head = "lm_head.weight";
    write_parameter(out, {embedding, {shape.vocabulary, shape.hidden}, shape.stored}, 0);
    if (!shape.tied && alike) out.link("model/" + head, "model/" + embedding);
    if (!shape.tied && !alike) write_parameter(out, {head, {shape.vocabulary, shape.hidden}, shape.stored}, 1);
    write_blocks(out, shape, alike);
    write_parameter(out, {"model.norm.weight", {shape.hidden}, shape.stored}, 0);
    out.close();
    target.commit();
    log::line(fmt::format("{}: {} parameters", arguments[1], shape.parameters()));
}

}  // namespace
}  // namespace sherd::tools

int main(int argc, char** argv) {
    return sherd::tools::run(argc, argv, sherd::tools::usage, 2, 4, sherd::tools::make);
}
