/// make_random_model: an HDF5 weights file of a Llama with random fp32 weights, for benchmarks: matrices normal(0, 0.02), norms 1, as
/// Hugging Face transformers initialises them.
#include "tools/tool.hpp"

#include "sherd/io/files.hpp"
#include "sherd/io/weight_source.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <random>

namespace sherd::tools {
namespace {

constexpr std::int64_t slice = std::int64_t{1} << 20;
constexpr std::string_view usage = "make_random_model tiny|small|smollm2 OUT.h5";

struct Sizes {
    std::string_view name;
    std::int64_t vocabulary, hidden, intermediate, layers, heads, kv_heads;
    bool tied;
    std::int64_t kv_size() const noexcept { return hidden / heads * kv_heads; }
};
constexpr std::array<Sizes, 3> models{{
    {"tiny", 4096, 288, 768, 6, 6, 6, true},
    {"small", 8192, 512, 1376, 8, 8, 4, false},
    {"smollm2", 49152, 576, 1536, 30, 9, 3, true},
}};

const Sizes& sizes_of(const std::string& name) {
    const auto found = std::find_if(models.begin(), models.end(), [&](const Sizes& s) { return s.name == name; });
    if (found == models.end()) throw UsageError("there is no model '{}': expected tiny, small or smollm2", name);
    return *found;
}

std::string config_of(const Sizes& s) {
    nlohmann::ordered_json config;
    config["architectures"] = {"LlamaForCausalLM"};
    config["model_type"] = "llama";
    config["vocab_size"] = s.vocabulary;
    config["hidden_size"] = s.hidden;
    config["intermediate_size"] = s.intermediate;
    config["num_hidden_layers"] = s.layers;
    config["num_attention_heads"] = s.heads;
    config["num_key_value_heads"] = s.kv_heads;
    config["head_dim"] = s.hidden / s.heads;
    config["max_position_embeddings"] = 2048;
    config["hidden_act"] = "silu";
    config["rms_norm_eps"] = 1e-6;
    config["rope_theta"] = 10000.0;
    config["attention_bias"] = false;
    config["mlp_bias"] = false;
    config["initializer_range"] = 0.02;
    config["tie_word_embeddings"] = s.tied;
    config["bos_token_id"] = 1;
    config["eos_token_id"] = 2;
    config["torch_dtype"] = "float32";
    return config.dump(2) + "\n";
}

/// Parameters by their Hugging Face names; those of one dimension are norms.
std::vector<TensorInfo> parameters_of(const Sizes& s) {
    std::vector<TensorInfo> all;
    const auto add = [&](std::string name, std::vector<std::int64_t> shape) {
        all.push_back({std::move(name), std::move(shape), DType::f32});
    };
    add("model.embed_tokens.weight", {s.vocabulary, s.hidden});
    for (std::int64_t layer = 0; layer < s.layers; ++layer) {
        const std::string prefix = fmt::format("model.layers.{}.", layer);
        add(prefix + "input_layernorm.weight", {s.hidden});
        add(prefix + "self_attn.q_proj.weight", {s.hidden, s.hidden});
        add(prefix + "self_attn.k_proj.weight", {s.kv_size(), s.hidden});
        add(prefix + "self_attn.v_proj.weight", {s.kv_size(), s.hidden});
        add(prefix + "self_attn.o_proj.weight", {s.hidden, s.hidden});
        add(prefix + "post_attention_layernorm.weight", {s.hidden});
        add(prefix + "mlp.gate_proj.weight", {s.intermediate, s.hidden});
        add(prefix + "mlp.up_proj.weight", {s.intermediate, s.hidden});
        add(prefix + "mlp.down_proj.weight", {s.hidden, s.intermediate});
    }
    add("model.norm.weight", {s.hidden});
    if (!s.tied) add("lm_head.weight", {s.vocabulary, s.hidden});
    return all;
}

void write_parameter(io::HdfFile& out, const TensorInfo& tensor, std::uint64_t seed) {
    const std::string dataset = "model/" + tensor.name;
    out.create_dataset(dataset, tensor.shape, DType::f32);
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal(0.0f, 0.02f);
    std::vector<float> values;
    for (std::int64_t begin = 0, n = tensor.elements(); begin < n; begin += slice) {
        values.resize(static_cast<std::size_t>(std::min(slice, n - begin)));
        if (tensor.shape.size() == 1)
            std::fill(values.begin(), values.end(), 1.0f);
        else
            std::generate(values.begin(), values.end(), [&] { return normal(random); });
        out.write(dataset, begin, static_cast<std::int64_t>(values.size()), values.data());
    }
}

void make(const std::vector<std::string>& arguments) {
    const Sizes& sizes = sizes_of(arguments[0]);
    io::AtomicTarget target(arguments[1], io::AtomicTarget::Kind::file);
    io::HdfFile out = io::HdfFile::create(target.path());
    out.set_attribute("/", "sherd.kind", std::string("weights"));
    out.set_attribute("/", "sherd.version", std::int64_t{1});
    out.set_attribute("/", "config", config_of(sizes));
    std::int64_t total = 0;
    std::uint64_t seed = 0;
    for (const TensorInfo& tensor : parameters_of(sizes)) {
        write_parameter(out, tensor, seed++);
        total += tensor.elements();
    }
    out.close();
    target.commit();
    log::line(fmt::format("{}: {} parameters", arguments[1], total));
}

}  // namespace
}  // namespace sherd::tools

int main(int argc, char** argv) {
    return sherd::tools::run(argc, argv, sherd::tools::usage, 2, 2, sherd::tools::make);
}
