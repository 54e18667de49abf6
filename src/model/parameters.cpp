#include "sherd/model/parameters.hpp"

#include "sherd/runtime/error.hpp"
#include "sherd/runtime/log.hpp"

#include <algorithm>
#include <map>

namespace sherd {

std::int64_t ParameterSpec::elements() const noexcept {
    std::int64_t n = 1;
    for (const std::int64_t d : shape) n *= d;
    return n;
}

namespace {

/// In the order of BlockParameter: matrices and norms that every block has, then what some models add.
std::vector<ParameterSpec> block_parameters(const ModelConfig& c, std::int64_t layer) {
    const std::string p = fmt::format("model.layers.{}.", layer), attention = p + "self_attn.", mlp = p + "mlp.";
    std::vector<ParameterSpec> all{{p + "input_layernorm.weight", {c.hidden}},
                                   {attention + "q_proj.weight", {c.query_width(), c.hidden}},
                                   {attention + "k_proj.weight", {c.kv_width(), c.hidden}},
                                   {attention + "v_proj.weight", {c.kv_width(), c.hidden}},
                                   {attention + "o_proj.weight", {c.hidden, c.query_width()}},
                                   {p + "post_attention_layernorm.weight", {c.hidden}},
                                   {mlp + "gate_proj.weight", {c.intermediate, c.hidden}},
                                   {mlp + "up_proj.weight", {c.intermediate, c.hidden}},
                                   {mlp + "down_proj.weight", {c.hidden, c.intermediate}}};
    const auto add = [&](bool there, const std::string& name, std::int64_t size) {
        if (there) all.push_back({name, {size}});
    };
    add(c.head_norm, attention + "q_norm.weight", c.head_dim);
    add(c.head_norm, attention + "k_norm.weight", c.head_dim);
    add(c.qkv_bias, attention + "q_proj.bias", c.query_width());
    add(c.qkv_bias, attention + "k_proj.bias", c.kv_width());
    add(c.qkv_bias, attention + "v_proj.bias", c.kv_width());
    add(c.output_bias, attention + "o_proj.bias", c.hidden);
    add(c.mlp_bias, mlp + "gate_proj.bias", c.intermediate);
    add(c.mlp_bias, mlp + "up_proj.bias", c.intermediate);
    add(c.mlp_bias, mlp + "down_proj.bias", c.hidden);
    return all;
}

}  // namespace

BlockIndex::BlockIndex(const ModelConfig& c) {
    int next = 9;
    const auto take = [&](bool there, int& index) {
        if (there) index = next++;
    };
    take(c.head_norm, query_norm);
    take(c.head_norm, key_norm);
    take(c.qkv_bias, query_bias);
    take(c.qkv_bias, key_bias);
    take(c.qkv_bias, value_bias);
    take(c.output_bias, output_bias);
    take(c.mlp_bias, gate_bias);
    take(c.mlp_bias, up_bias);
    take(c.mlp_bias, down_bias);
}

std::vector<UnitSpec> parameter_units(const ModelConfig& c) {
    const ParameterSpec embedding{"model.embed_tokens.weight", {c.vocabulary, c.hidden}}, norm{"model.norm.weight", {c.hidden}};
    std::vector<UnitSpec> units;
    units.push_back(c.tied ? UnitSpec{"outer", {embedding, norm}, true} : UnitSpec{"embedding", {embedding}, true});
    for (std::int64_t i = 0; i < c.layers; ++i) units.push_back({fmt::format("block {}", i), block_parameters(c, i), false});
    if (!c.tied) units.push_back({"head", {norm, {"lm_head.weight", {c.vocabulary, c.hidden}}}, true});
    return units;
}

std::int64_t parameter_count(const std::vector<UnitSpec>& units) {
    std::int64_t n = 0;
    for (const UnitSpec& u : units)
        for (const ParameterSpec& p : u.parameters) n += p.elements();
    return n;
}

bool is_ignored_tensor(const std::string& name) {
    return name.ends_with(".rotary_emb.inv_freq");
}

namespace {

/// A prefix that wrappers put before every name: torch.compile's "_orig_mod.", DistributedDataParallel's "module.".
void refuse_wrapper_prefix(const WeightSource& source) {
    for (const char* prefix : {"_orig_mod.", "module."}) {
        const auto& t = source.tensors();
        if (!t.empty() && std::all_of(t.begin(), t.end(), [&](const TensorInfo& x) { return x.name.starts_with(prefix); }))
            throw InputError("{}: every tensor's name begins with '{}', left by a wrapper; save the unwrapped model", source.path(),
                             prefix);
    }
}

void check_present(const ParameterSpec& p, const WeightSource& source) {
    const TensorInfo* t = source.find(p.name);
    if (t == nullptr)
        throw InputError("{}: parameter '{}' of shape {} is missing; config.json needs it", source.path(), p.name, to_string(p.shape));
    if (!is_weight_dtype(t->dtype))
        throw InputError("{}: type is {}, expected fp32, fp16 or bf16 (a quantized model must be dequantized first)", source.describe(*t),
                         name_of(t->dtype));
    if (t->shape != p.shape)
        throw InputError("{}: shape is {}, config.json needs {}", source.describe(*t), to_string(t->shape), to_string(p.shape));
}

}  // namespace

void check_parameters(const ModelConfig& config, const WeightSource& source) {
    refuse_wrapper_prefix(source);
    for (const TensorInfo& t : source.tensors())
        if (t.name.ends_with(".weight_scale") || t.name.ends_with(".weight_scale_inv"))
            throw InputError("{}: quantization scales; the folder is quantized and must be dequantized first", source.describe(t));
    std::map<std::string, bool> wanted;
    for (const UnitSpec& u : parameter_units(config))
        for (const ParameterSpec& p : u.parameters) {
            check_present(p, source);
            wanted[p.name] = true;
        }
    std::size_t ignored = 0;
    for (const TensorInfo& t : source.tensors()) {
        if (wanted.contains(t.name)) continue;
        if (is_ignored_tensor(t.name)) {
            ++ignored;
        } else if (config.tied && t.name == "lm_head.weight") {
            log::notice(fmt::format("{}: not read, the model's head is tied to its embedding", source.describe(t)));
        } else {
            throw InputError("{}: no parameter of a {} with this config.json has that name", source.describe(t), config.architecture);
        }
    }
    if (ignored > 0) log::notice(fmt::format("{}: {} stored rotary frequency buffers are ignored", source.path(), ignored));
}

}  // namespace sherd
