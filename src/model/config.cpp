#include "sherd/model/config.hpp"

#include "sherd/io/json.hpp"
#include "sherd/runtime/error.hpp"

#include <nlohmann/json.hpp>

#include <cmath>
#include <limits>

namespace sherd {

namespace {

using nlohmann::json;

/// Typed access to config.json that names the file and the key in every error, and notes each default taken.
class Reader {
  public:
    Reader(const json& root, const std::string& name, std::vector<std::string>& assumed) : root_(root), name_(name), assumed_(assumed) {}

    bool has(const char* key) const { return root_.contains(key) && !root_.at(key).is_null(); }

    /// A positive integer that a model cannot do without.
    std::int64_t needed(const char* key) const {
        if (!has(key)) throw InputError("{}: key '{}' is missing; a decoder cannot be built without it", name_, key);
        return positive(key);
    }
    std::int64_t positive_or(const char* key, std::int64_t fallback) {
        if (has(key)) return positive(key);
        assumed_.push_back(fmt::format("{} = {}", key, fallback));
        return fallback;
    }
    double number_or(const char* key, double fallback) {
        if (!has(key)) {
            assumed_.push_back(fmt::format("{} = {:g}", key, fallback));
            return fallback;
        }
        return number(root_.at(key), key);
    }
    bool flag_or(const char* key, bool fallback) const {
        if (!has(key)) return fallback;
        if (!root_.at(key).is_boolean()) throw InputError("{}: key '{}' is {}, expected true or false", name_, key, root_.at(key).dump());
        return root_.at(key).get<bool>();
    }
    std::string text_or(const char* key, const std::string& fallback) const {
        if (!has(key)) return fallback;
        if (!root_.at(key).is_string()) throw InputError("{}: key '{}' is {}, expected a string", name_, key, root_.at(key).dump());
        return root_.at(key).get<std::string>();
    }
    double number(const json& value, const std::string& key) const {
        if (!value.is_number()) throw InputError("{}: key '{}' is {}, expected a number", name_, key, value.dump());
        return value.get<double>();
    }

  private:
    std::int64_t positive(const char* key) const {
        const json& value = root_.at(key);
        // 2^31 - 1 bounds every dimension: products of two stay within 64 bits
        const bool whole = value.is_number_integer() || (value.is_number_float() && value.get<double>() == std::floor(value.get<double>()));
        if (!whole || value.get<double>() < 1 || value.get<double>() > std::numeric_limits<std::int32_t>::max())
            throw InputError("{}: key '{}' is {}, expected a whole number of at least 1", name_, key, value.dump());
        return value.get<std::int64_t>();
    }
    const json& root_;
    const std::string& name_;
    std::vector<std::string>& assumed_;
};

std::string architecture_of(const json& root, const Reader& read, const std::string& name) {
    const char* supported = "LlamaForCausalLM (model_type \"llama\")";
    if (read.has("architectures")) {
        const json& list = root.at("architectures");
        if (!list.is_array() || list.empty() || !list[0].is_string())
            throw InputError("{}: key 'architectures' is {}, expected a list with one name", name, list.dump());
        const auto architecture = list[0].get<std::string>();
        if (architecture != "LlamaForCausalLM")
            throw InputError("{}: architecture '{}' is not supported; supported: {}", name, architecture, supported);
    } else if (!read.has("model_type")) {
        throw InputError("{}: neither 'architectures' nor 'model_type' is there; one of them must name the model family", name);
    }
    const std::string type = read.text_or("model_type", "llama");
    if (type != "llama") throw InputError("{}: model_type '{}' is not supported; supported: {}", name, type, supported);
    return "LlamaForCausalLM";
}

/// rope_theta and the type from both spellings: `rope_parameters`, or `rope_theta` + `rope_scaling`. Two that disagree are refused.
double rope_theta_of(const json& root, Reader& read, const std::string& name) {
    double theta = -1;
    const auto take = [&](double value, const char* key) {
        if (!(value > 0) || !std::isfinite(value)) throw InputError("{}: '{}' is {}, expected a number above 0", name, key, value);
        if (theta > 0 && theta != value) throw InputError("{}: rope_theta is given twice, as {} and {}", name, theta, value);
        theta = value;
    };
    for (const char* key : {"rope_parameters", "rope_scaling"}) {
        if (!read.has(key)) continue;
        const json& rope = root.at(key);
        if (!rope.is_object()) throw InputError("{}: key '{}' is {}, expected an object", name, key, rope.dump());
        for (const char* spelling : {"rope_type", "type"}) {
            const json type = rope.value(spelling, json("default"));
            if (type != "default")
                throw InputError("{}: {}.{} is {}; only the default rotary embedding is supported in this version", name, key, spelling,
                                 type.dump());
        }
        if (rope.contains("rope_theta")) take(read.number(rope.at("rope_theta"), "rope_theta"), "rope_theta");
    }
    if (read.has("rope_theta")) take(read.number(root.at("rope_theta"), "rope_theta"), "rope_theta");
    return theta > 0 ? theta : read.number_or("rope_theta", 10000.0);
}

/// Keys that change the mathematics away from what is implemented.
void refuse_unsupported(const json& root, const Reader& read, const std::string& name) {
    const std::string activation = read.text_or("hidden_act", "silu");
    if (activation != "silu" && activation != "swish")
        throw InputError("{}: hidden_act '{}' is not supported; supported: silu", name, activation);
    for (const char* key : {"attention_bias", "mlp_bias"})
        if (read.flag_or(key, false)) throw InputError("{}: {} = true is not supported in this version", name, key);
    for (const char* key : {"attention_dropout", "hidden_dropout", "residual_dropout"})
        if (read.has(key) && read.number(root.at(key), key) != 0)
            throw InputError("{}: {} = {} is not supported; set it to 0", name, key, root.at(key).dump());
    for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts"})
        if (read.has(key) && root.at(key) != 0 && root.at(key) != 1) throw InputError("{}: {}: experts are not supported", name, key);
    for (const char* key : {"quantization_config", "compression_config"})
        if (read.has(key)) throw InputError("{}: {}: a quantized folder must be dequantized first", name, key);
    if (read.has("partial_rotary_factor") && read.number(root.at("partial_rotary_factor"), "partial_rotary_factor") != 1)
        throw InputError("{}: partial_rotary_factor = {} is not supported; supported: 1", name, root.at("partial_rotary_factor").dump());
    if (read.has("sliding_window")) throw InputError("{}: sliding_window is not supported in this version", name);
}

}  // namespace

ModelConfig parse_model_config(const std::string& text, const std::string& name) {
    const json root = io::parse_json(text, name);
    if (!root.is_object()) throw InputError("{}: expected a JSON object with the model's configuration", name);
    ModelConfig c;
    Reader read(root, name, c.assumed);
    c.architecture = architecture_of(root, read, name);
    refuse_unsupported(root, read, name);
    c.vocabulary = read.needed("vocab_size");
    c.hidden = read.needed("hidden_size");
    c.intermediate = read.needed("intermediate_size");
    c.layers = read.needed("num_hidden_layers");
    c.heads = read.needed("num_attention_heads");
    c.kv_heads = read.has("num_key_value_heads") ? read.needed("num_key_value_heads") : c.heads;
    if (c.heads % c.kv_heads != 0)
        throw InputError("{}: num_attention_heads = {} is not a multiple of num_key_value_heads = {}", name, c.heads, c.kv_heads);
    if (read.has("head_dim")) {
        c.head_dim = read.needed("head_dim");
    } else if (c.hidden % c.heads != 0) {
        throw InputError("{}: hidden_size = {} is not a multiple of num_attention_heads = {} and no head_dim is given", name, c.hidden,
                         c.heads);
    } else {
        c.head_dim = c.hidden / c.heads;
    }
    if (c.head_dim % 2 != 0) throw InputError("{}: head_dim = {} is odd; the rotary embedding turns pairs", name, c.head_dim);
    c.max_positions = read.positive_or("max_position_embeddings", 2048);
    c.norm_epsilon = read.number_or("rms_norm_eps", 1e-6);
    if (!(c.norm_epsilon >= 0)) throw InputError("{}: rms_norm_eps = {} is below 0", name, c.norm_epsilon);
    c.rope_theta = rope_theta_of(root, read, name);
    c.tied = read.flag_or("tie_word_embeddings", false);
    return c;
}

}  // namespace sherd
