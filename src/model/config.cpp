#include "sherd/model/config.hpp"

#include "model/config_reader.hpp"
#include "model/rope_config.hpp"

#include "sherd/io/json.hpp"

#include <algorithm>
#include <array>

namespace sherd {

namespace {

/// Which keys make a token see only a window of those before it.
enum class Windows {
    none,        ///< the family knows no window
    all_layers,  ///< `sliding_window` holds for every layer
    by_switch    ///< `use_sliding_window`, and by layer: `layer_types`, or the layers from `max_window_layers` on
};

/// A model family: what its code in transformers fixes, and the defaults of its configuration class there.
struct Family {
    const char *architecture, *model_type;
    std::int64_t kv_heads;  ///< 0: as many as heads
    std::int64_t head_dim;  ///< 0: hidden_size / num_attention_heads
    std::int64_t max_positions;
    bool always_qkv_bias, has_attention_bias, has_mlp_bias, head_norm;
    Windows windows;
};

constexpr std::array<Family, 4> families{{
    {"LlamaForCausalLM", "llama", 0, 0, 2048, false, true, true, false, Windows::none},
    {"MistralForCausalLM", "mistral", 8, 0, 131072, false, false, false, false, Windows::all_layers},
    {"Qwen2ForCausalLM", "qwen2", 32, 0, 32768, true, false, false, false, Windows::by_switch},
    {"Qwen3ForCausalLM", "qwen3", 32, 128, 32768, false, true, false, true, Windows::by_switch},
}};
constexpr std::int64_t most_layers = 10'000;  // what follows allocates by this number before it meets the tensors
constexpr std::int64_t default_window = 4096, default_max_window_layers = 28;

std::string supported() {
    std::string text;
    for (const Family& f : families)
        text += fmt::format("{}{} (model_type \"{}\")", text.empty() ? "" : ", ", f.architecture, f.model_type);
    return text;
}

const Family& family_of(const ConfigReader& read) {
    const json& root = read.root();
    const std::string& name = read.name();
    const auto find = [&](const std::string& value, const char* key, auto member) -> const Family* {
        for (const Family& f : families)
            if (value == f.*member) return &f;
        throw InputError("{}: {} '{}' is not supported; supported: {}", name, key, value, supported());
    };
    const Family* by_architecture = nullptr;
    if (read.has("architectures")) {
        const json& list = root.at("architectures");
        if (!list.is_array() || list.empty() || !list[0].is_string())
            throw InputError("{}: key 'architectures' is {}, expected a list with one name", name, list.dump());
        by_architecture = find(list[0].get<std::string>(), "architecture", &Family::architecture);
    }
    const Family* by_type = read.has("model_type") ? find(read.text_or("model_type", ""), "model_type", &Family::model_type) : nullptr;
    if (by_architecture == nullptr && by_type == nullptr)
        throw InputError("{}: neither 'architectures' nor 'model_type' is there; one of them must name the model family", name);
    if (by_architecture != nullptr && by_type != nullptr && by_architecture != by_type)
        throw InputError("{}: architecture '{}' and model_type '{}' disagree", name, by_architecture->architecture, by_type->model_type);
    return by_architecture != nullptr ? *by_architecture : *by_type;
}

/// Keys that change the mathematics away from what is implemented.
void refuse_unsupported(ConfigReader& read, const Family& family) {
    const json& root = read.root();
    const std::string& name = read.name();
    if (!read.has("hidden_act")) read.assume("hidden_act", "silu");
    const std::string activation = read.text_or("hidden_act", "silu");
    if (activation != "silu" && activation != "swish")
        throw InputError("{}: hidden_act '{}' is not supported; supported: silu", name, activation);
    if (!family.has_attention_bias && !family.always_qkv_bias && read.is_true("attention_bias"))
        throw InputError("{}: attention_bias = true is not supported for {}", name, family.architecture);
    if (!family.has_mlp_bias && read.is_true("mlp_bias"))
        throw InputError("{}: mlp_bias = true is not supported for {}", name, family.architecture);
    for (const char* key : {"attention_dropout", "hidden_dropout", "residual_dropout", "embd_pdrop", "resid_pdrop"})
        if (read.has(key) && read.number(root.at(key), key) != 0)
            throw InputError("{}: {} = {} is not supported; set it to 0", name, key, root.at(key).dump());
    for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts"})
        if (read.has(key) && root.at(key) != 0 && root.at(key) != 1) throw InputError("{}: {}: experts are not supported", name, key);
    for (const char* key : {"quantization_config", "compression_config"})
        if (read.has(key)) throw InputError("{}: {}: a quantized folder must be dequantized first", name, key);
    if (family.windows == Windows::none && read.has("sliding_window"))
        throw InputError("{}: sliding_window is not supported for {}; supported for Mistral, Qwen2 and Qwen3", name, family.architecture);
}

/// `layer_types` as a list that is true for windowed layers; empty where the key is absent.
std::vector<bool> layer_types_of(const ConfigReader& read, std::int64_t layers) {
    std::vector<bool> windowed;
    if (!read.has("layer_types")) return windowed;
    const json& list = read.root().at("layer_types");
    if (!list.is_array() || list.size() != static_cast<std::size_t>(layers))
        throw InputError("{}: key 'layer_types' must list {} names, one per layer", read.name(), layers);
    for (const json& type : list) {
        if (type != "full_attention" && type != "sliding_attention")
            throw InputError("{}: layer_types holds {}; supported: \"full_attention\", \"sliding_attention\"", read.name(), type.dump());
        windowed.push_back(type == "sliding_attention");
    }
    return windowed;
}

std::vector<std::int64_t> windows_of(ConfigReader& read, const Family& family, std::int64_t layers) {
    const auto whole = static_cast<std::size_t>(layers);
    std::vector<std::int64_t> windows(whole, 0);
    const std::vector<bool> types = layer_types_of(read, layers);
    if (family.windows == Windows::none) {
        if (std::find(types.begin(), types.end(), true) != types.end())
            throw InputError("{}: layer_types asks for sliding attention, which {} does not have", read.name(), family.architecture);
        return windows;
    }
    const bool is_null = read.root().contains("sliding_window") && read.root().at("sliding_window").is_null();
    const bool on = family.windows == Windows::all_layers || read.flag_or("use_sliding_window", false);
    if (!on || is_null) {
        if (std::find(types.begin(), types.end(), true) != types.end())
            throw InputError("{}: layer_types asks for sliding attention, but {}", read.name(),
                             on ? "sliding_window is null" : "use_sliding_window is not true");
        return windows;
    }
    const std::int64_t window = read.positive_or("sliding_window", default_window);
    if (family.windows == Windows::all_layers) {
        if (std::find(types.begin(), types.end(), false) != types.end())
            throw InputError("{}: layer_types with full attention beside sliding_window = {}; {} has one window for all layers",
                             read.name(), window, family.architecture);
        windows.assign(whole, window);
        return windows;
    }
    const std::int64_t first = types.empty() ? read.count_or("max_window_layers", default_max_window_layers) : 0;
    for (std::size_t i = 0; i < whole; ++i)
        if (types.empty() ? static_cast<std::int64_t>(i) >= first : types[i]) windows[i] = window;
    return windows;
}

void read_heads(ConfigReader& read, const Family& family, ModelConfig& c) {
    const std::string& name = read.name();
    c.heads = read.needed("num_attention_heads");
    const bool null_kv = read.root().contains("num_key_value_heads") && !read.has("num_key_value_heads");
    if (null_kv || (family.kv_heads == 0 && !read.has("num_key_value_heads"))) {
        c.kv_heads = c.heads;
        read.assume("num_key_value_heads", fmt::format("{} (num_attention_heads)", c.heads));
    } else {
        c.kv_heads = read.positive_or("num_key_value_heads", family.kv_heads);
    }
    if (c.heads % c.kv_heads != 0)
        throw InputError("{}: num_attention_heads = {} is not a multiple of num_key_value_heads = {}", name, c.heads, c.kv_heads);
    if (read.has("head_dim")) {
        c.head_dim = read.needed("head_dim");
    } else if (family.head_dim > 0) {
        c.head_dim = read.positive_or("head_dim", family.head_dim);
    } else if (c.hidden % c.heads != 0) {
        throw InputError("{}: hidden_size = {} is not a multiple of num_attention_heads = {} and no head_dim is given", name, c.hidden,
                         c.heads);
    } else {
        c.head_dim = c.hidden / c.heads;
    }
    if (c.head_dim % 2 != 0) throw InputError("{}: head_dim = {} is odd; the rotary embedding turns pairs", name, c.head_dim);
}

}  // namespace

ModelConfig parse_model_config(const std::string& text, const std::string& name) {
    const json root = io::parse_json(text, name);
    if (!root.is_object()) throw InputError("{}: expected a JSON object with the model's configuration", name);
    ModelConfig c;
    ConfigReader read(root, name, c.assumed);
    const Family& family = family_of(read);
    c.architecture = family.architecture;
    refuse_unsupported(read, family);
    c.vocabulary = read.needed("vocab_size");
    c.hidden = read.needed("hidden_size");
    c.intermediate = read.needed("intermediate_size");
    c.layers = read.needed("num_hidden_layers");
    if (c.layers > most_layers)
        throw InputError("{}: num_hidden_layers = {} is above {}, more than any model has", name, c.layers, most_layers);
    read_heads(read, family, c);
    c.max_positions = read.positive_or("max_position_embeddings", family.max_positions);
    c.norm_epsilon = read.number_or("rms_norm_eps", 1e-6);
    if (!(c.norm_epsilon >= 0)) throw InputError("{}: rms_norm_eps = {} is below 0", name, c.norm_epsilon);
    c.rope = read_rope(read, c.max_positions);
    c.tied = read.flag_or("tie_word_embeddings", false);
    const bool attention_bias = family.has_attention_bias && read.flag_or("attention_bias", false);
    c.qkv_bias = family.always_qkv_bias || attention_bias;
    c.output_bias = attention_bias;
    c.mlp_bias = family.has_mlp_bias && read.flag_or("mlp_bias", false);
    c.head_norm = family.head_norm;
    c.windows = windows_of(read, family, c.layers);
    return c;
}

}  // namespace sherd
