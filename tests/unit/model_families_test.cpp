/// What each family makes of its keys: biases, head norms, windows, defaults. Expected values are those of transformers 5.24's
/// configuration classes, written down from `MistralConfig().to_dict()`, `Qwen2Config(...).layer_types` and the like.
#include "sherd/model/config.hpp"
#include "sherd/model/parameters.hpp"
#include "sherd/runtime/error.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>
#include <vector>

namespace sherd {
namespace {

using nlohmann::json;
using Windows = std::vector<std::int64_t>;

/// A configuration with nothing but what has no default.
json bare(const char* architecture, const json& more = json::object()) {
    json config = {{"architectures", {architecture}}, {"vocab_size", 64},       {"hidden_size", 512},
                   {"intermediate_size", 96},         {"num_hidden_layers", 4}, {"num_attention_heads", 32}};
    config.update(more);
    return config;
}

ModelConfig parse(const char* architecture, const json& more = json::object()) {
    return parse_model_config(bare(architecture, more).dump(), "some/config.json");
}

void expect_refused(const char* architecture, const json& more, const std::vector<std::string>& parts) {
    try {
        parse(architecture, more);
        ADD_FAILURE() << "accepted: " << architecture << " " << more;
    } catch (const InputError& e) {
        const std::string message = e.what();
        EXPECT_NE(message.find("some/config.json"), std::string::npos) << message;
        for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << "no '" << part << "' in: " << message;
    }
}

std::vector<std::string> names_of_block(const ModelConfig& c) {
    std::vector<std::string> names;
    for (const UnitSpec& unit : parameter_units(c))
        if (unit.name == "block 0")
            for (const ParameterSpec& p : unit.parameters) names.push_back(p.name.substr(std::string("model.layers.0.").size()));
    std::sort(names.begin(), names.end());
    return names;
}

TEST(ModelFamilies, defaults) {
    const ModelConfig llama = parse("LlamaForCausalLM"), mistral = parse("MistralForCausalLM"), qwen2 = parse("Qwen2ForCausalLM"),
                      qwen3 = parse("Qwen3ForCausalLM");
    EXPECT_EQ(llama.kv_heads, 32);
    EXPECT_EQ(mistral.kv_heads, 8);
    EXPECT_EQ(qwen2.kv_heads, 32);
    EXPECT_EQ(qwen3.kv_heads, 32);
    EXPECT_EQ(llama.head_dim, 16);
    EXPECT_EQ(mistral.head_dim, 16);
    EXPECT_EQ(qwen2.head_dim, 16);
    EXPECT_EQ(qwen3.head_dim, 128);
    EXPECT_EQ(llama.max_positions, 2048);
    EXPECT_EQ(mistral.max_positions, 131072);
    EXPECT_EQ(qwen2.max_positions, 32768);
    EXPECT_EQ(qwen3.max_positions, 32768);
    for (const ModelConfig& c : {llama, mistral, qwen2, qwen3}) {
        EXPECT_EQ(c.norm_epsilon, 1e-6);
        EXPECT_EQ(c.rope.theta, 10000.0);
        EXPECT_FALSE(c.tied);
    }
    EXPECT_EQ(llama.windows, Windows(4, 0));
    EXPECT_EQ(mistral.windows, Windows(4, 4096));
    EXPECT_EQ(qwen2.windows, Windows(4, 0));
    EXPECT_EQ(qwen3.windows, Windows(4, 0));
}

TEST(ModelFamilies, a_null_number_of_key_value_heads_means_one_for_each_head) {
    for (const char* family : {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
        EXPECT_EQ(parse(family, {{"num_key_value_heads", nullptr}, {"num_attention_heads", 16}}).kv_heads, 16) << family;
    // the family's default need not fit
    expect_refused("Qwen2ForCausalLM", {{"num_attention_heads", 16}}, {"num_attention_heads = 16", "num_key_value_heads = 32"});
}

TEST(ModelFamilies, parameters_of_a_block) {
    const std::vector<std::string> plain{
        "input_layernorm.weight",          "mlp.down_proj.weight",    "mlp.gate_proj.weight",    "mlp.up_proj.weight",
        "post_attention_layernorm.weight", "self_attn.k_proj.weight", "self_attn.o_proj.weight", "self_attn.q_proj.weight",
        "self_attn.v_proj.weight"};
    const auto with = [&](std::vector<std::string> more) {
        more.insert(more.end(), plain.begin(), plain.end());
        std::sort(more.begin(), more.end());
        return more;
    };
    const std::vector<std::string> qkv{"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"};
    EXPECT_EQ(names_of_block(parse("LlamaForCausalLM")), plain);
    EXPECT_EQ(names_of_block(parse("MistralForCausalLM")), plain);
    EXPECT_EQ(names_of_block(parse("Qwen2ForCausalLM")), with(qkv));
    EXPECT_EQ(names_of_block(parse("Qwen2ForCausalLM", {{"attention_bias", false}})), with(qkv));
    EXPECT_EQ(names_of_block(parse("Qwen3ForCausalLM")), with({"self_attn.q_norm.weight", "self_attn.k_norm.weight"}));
    auto all = qkv;
    all.insert(all.end(), {"self_attn.o_proj.bias", "self_attn.q_norm.weight", "self_attn.k_norm.weight"});
    EXPECT_EQ(names_of_block(parse("Qwen3ForCausalLM", {{"attention_bias", true}})), with(all));
    EXPECT_EQ(names_of_block(parse("LlamaForCausalLM", {{"mlp_bias", true}})),
              with({"mlp.gate_proj.bias", "mlp.up_proj.bias", "mlp.down_proj.bias"}));
    auto attention = qkv;
    attention.push_back("self_attn.o_proj.bias");
    EXPECT_EQ(names_of_block(parse("LlamaForCausalLM", {{"attention_bias", true}})), with(attention));
}

TEST(ModelFamilies, mistral_has_one_window_or_none) {
    EXPECT_EQ(parse("MistralForCausalLM", {{"sliding_window", 7}}).windows, Windows(4, 7));
    EXPECT_EQ(parse("MistralForCausalLM", {{"sliding_window", nullptr}}).windows, Windows(4, 0));
    expect_refused("MistralForCausalLM", {{"sliding_window", 0}}, {"sliding_window", "at least 1"});
    expect_refused("MistralForCausalLM", {{"sliding_window", 7}, {"layer_types", std::vector<std::string>(4, "full_attention")}},
                   {"layer_types", "sliding_window = 7"});
}

TEST(ModelFamilies, qwen_has_windows_by_layer_when_switched_on) {
    const std::vector<std::string> types{"full_attention", "sliding_attention", "full_attention", "sliding_attention"};
    for (const char* family : {"Qwen2ForCausalLM", "Qwen3ForCausalLM"}) {
        const json on = {{"use_sliding_window", true}, {"sliding_window", 5}};
        const auto with = [&](const json& more) {
            json keys = on;
            keys.update(more);
            return parse(family, keys).windows;
        };
        EXPECT_EQ(parse(family, {{"sliding_window", 5}, {"max_window_layers", 1}}).windows, Windows(4, 0));
        EXPECT_EQ(with(json::object()), Windows(4, 0)) << "max_window_layers is 28 unless given";
        EXPECT_EQ(with({{"max_window_layers", 2}}), (Windows{0, 0, 5, 5}));
        EXPECT_EQ(with({{"max_window_layers", 0}}), Windows(4, 5));
        EXPECT_EQ(with({{"max_window_layers", 9}}), Windows(4, 0));
        EXPECT_EQ(with({{"max_window_layers", 2}, {"layer_types", types}}), (Windows{0, 5, 0, 5})) << "layer_types wins";
        EXPECT_EQ(with({{"sliding_window", nullptr}, {"max_window_layers", 2}}), Windows(4, 0));
        EXPECT_EQ(parse(family, {{"use_sliding_window", true}, {"max_window_layers", 2}}).windows, (Windows{0, 0, 4096, 4096}));
        expect_refused(family, {{"layer_types", types}}, {"layer_types", "use_sliding_window is not true"});
        expect_refused(family, {{"use_sliding_window", true}, {"sliding_window", nullptr}, {"layer_types", types}},
                       {"layer_types", "sliding_window is null"});
    }
}

TEST(ModelFamilies, layer_types_must_be_a_list_of_known_names_for_every_layer) {
    const char* const family = "Qwen3ForCausalLM";
    for (const json& bad : {json("full_attention"), json::array(), json(std::vector<std::string>(3, "full_attention")), json(7)})
        expect_refused(family, {{"layer_types", bad}}, {"layer_types", "4 names"});
    expect_refused(family, {{"layer_types", {"full_attention", "chunked_attention", "full_attention", "full_attention"}}},
                   {"layer_types", "chunked_attention", "sliding_attention"});
    expect_refused(family, {{"layer_types", {"full_attention", 3, "full_attention", "full_attention"}}}, {"layer_types", "3"});
    const std::vector<std::string> sliding(4, "sliding_attention");
    expect_refused("LlamaForCausalLM", {{"layer_types", sliding}}, {"layer_types", "LlamaForCausalLM"});
    EXPECT_EQ(parse("LlamaForCausalLM", {{"layer_types", std::vector<std::string>(4, "full_attention")}}).windows, Windows(4, 0));
}

TEST(ModelFamilies, keys_of_other_families_are_refused_where_they_would_matter) {
    for (const char* family : {"MistralForCausalLM", "Qwen2ForCausalLM"})
        expect_refused(family, {{"mlp_bias", true}}, {"mlp_bias", family});
    expect_refused("MistralForCausalLM", {{"attention_bias", true}}, {"attention_bias", "MistralForCausalLM"});
    expect_refused("LlamaForCausalLM", {{"sliding_window", 5}}, {"sliding_window", "LlamaForCausalLM"});
    EXPECT_NO_THROW(parse("LlamaForCausalLM", {{"sliding_window", nullptr}, {"mlp_bias", nullptr}, {"a_key_of_tomorrow", {1, 2}}}));
    for (const char* flag : {"use_sliding_window", "attention_bias"})
        expect_refused("Qwen3ForCausalLM", {{flag, 1}}, {flag, "true or false"});
}

}  // namespace
}  // namespace sherd
