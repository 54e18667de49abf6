/// config.json: what is taken, what is refused, and that the message names key, value and rule.
#include "sherd/model/config.hpp"
#include "sherd/runtime/error.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace sherd {
namespace {

using nlohmann::json;

json llama() {
    return json::parse(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 131, "hidden_size": 48,
        "intermediate_size": 104, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 64, "rope_theta": 10000.0, "tie_word_embeddings": false, "hidden_act": "silu", "attention_bias": false,
        "mlp_bias": false})");
}

ModelConfig parse(const json& config) {
    return parse_model_config(config.dump(), "some/config.json");
}

/// llama() with these keys changed; a null value removes the key.
json with(const json& changes) {
    json config = llama();
    for (const auto& [key, value] : changes.items()) {
        if (value.is_null())
            config.erase(key);
        else
            config[key] = value;
    }
    return config;
}

/// The message must name the file and all `parts`.
void expect_refused(const json& changes, const std::vector<std::string>& parts) {
    try {
        parse(with(changes));
        ADD_FAILURE() << "accepted: " << changes;
    } catch (const InputError& e) {
        const std::string message = e.what();
        EXPECT_NE(message.find("some/config.json"), std::string::npos) << message;
        for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << "no '" << part << "' in: " << message;
    }
}

TEST(ModelConfig, takes_every_key) {
    const ModelConfig c = parse(llama());
    EXPECT_EQ(c.architecture, "LlamaForCausalLM");
    EXPECT_EQ(c.vocabulary, 131);
    EXPECT_EQ(c.hidden, 48);
    EXPECT_EQ(c.intermediate, 104);
    EXPECT_EQ(c.layers, 3);
    EXPECT_EQ(c.heads, 4);
    EXPECT_EQ(c.kv_heads, 2);
    EXPECT_EQ(c.head_dim, 12);
    EXPECT_EQ(c.query_width(), 48);
    EXPECT_EQ(c.kv_width(), 24);
    EXPECT_EQ(c.max_positions, 64);
    EXPECT_EQ(c.norm_epsilon, 1e-5);
    EXPECT_EQ(c.rope.theta, 10000.0);
    EXPECT_FALSE(c.tied);
    EXPECT_TRUE(c.assumed.empty());
    EXPECT_TRUE(parse(with({{"tie_word_embeddings", true}})).tied);
}

TEST(ModelConfig, head_dim_need_not_divide_the_hidden_size) {
    const ModelConfig c = parse(with({{"hidden_size", 28}, {"num_attention_heads", 3}, {"num_key_value_heads", 1}, {"head_dim", 8}}));
    EXPECT_EQ(c.query_width(), 24);
    EXPECT_EQ(c.kv_width(), 8);
    expect_refused({{"hidden_size", 28}, {"num_attention_heads", 3}, {"num_key_value_heads", 1}}, {"hidden_size = 28", "3", "head_dim"});
    expect_refused({{"head_dim", 7}}, {"head_dim = 7", "odd"});
    expect_refused({{"hidden_size", 36}}, {"head_dim = 9", "odd"});  // 36 / 4
}

TEST(ModelConfig, heads_must_fit) {
    expect_refused({{"num_attention_heads", 0}}, {"num_attention_heads", "0", "at least 1"});
    expect_refused({{"num_key_value_heads", 0}}, {"num_key_value_heads", "0", "at least 1"});
    expect_refused({{"num_key_value_heads", 3}}, {"num_attention_heads = 4", "num_key_value_heads = 3", "multiple"});
    expect_refused({{"num_key_value_heads", 8}}, {"num_key_value_heads = 8", "multiple"});
    EXPECT_EQ(parse(with({{"num_key_value_heads", nullptr}})).kv_heads, 4);
}

TEST(ModelConfig, needed_keys) {
    for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}) {
        expect_refused({{key, nullptr}}, {std::string("'") + key + "'", "missing"});
        for (const json& bad : {json(-1), json(0), json(1.5), json("48"), json(true), json(1e300), json(std::int64_t{1} << 31)})
            expect_refused({{key, bad}}, {std::string("'") + key + "'", bad.dump()});
    }
    EXPECT_EQ(parse(with({{"hidden_size", 48.0}})).hidden, 48);
    expect_refused({{"architectures", nullptr}, {"model_type", nullptr}}, {"architectures", "model_type"});
    EXPECT_NO_THROW(parse(with({{"architectures", nullptr}})));
    EXPECT_NO_THROW(parse(with({{"model_type", nullptr}})));
}

TEST(ModelConfig, defaults_are_those_of_transformers_and_are_told) {
    json changes = {{"rms_norm_eps", nullptr}, {"rope_theta", nullptr}, {"max_position_embeddings", nullptr}};
    for (const char* key : {"hidden_act", "num_key_value_heads", "tie_word_embeddings", "attention_bias", "mlp_bias"})
        changes[key] = nullptr;
    const ModelConfig c = parse(with(changes));
    EXPECT_EQ(c.kv_heads, 4);
    EXPECT_FALSE(c.tied || c.qkv_bias || c.output_bias || c.mlp_bias);
    EXPECT_EQ(c.norm_epsilon, 1e-6);
    EXPECT_EQ(c.rope.theta, 10000.0);
    EXPECT_EQ(c.max_positions, 2048);
    const std::vector<std::string> expected{"hidden_act = silu",
                                            "num_key_value_heads = 4 (num_attention_heads)",
                                            "max_position_embeddings = 2048",
                                            "rms_norm_eps = 1e-06",
                                            "rope_theta = 10000",
                                            "tie_word_embeddings = false",
                                            "attention_bias = false",
                                            "mlp_bias = false"};
    EXPECT_EQ(c.assumed, expected);
}

TEST(ModelConfig, both_spellings_of_the_rotary_embedding) {
    const json parameters = {{"rope_theta", 500.0}, {"rope_type", "default"}};
    EXPECT_EQ(parse(with({{"rope_theta", nullptr}, {"rope_parameters", parameters}})).rope.theta, 500.0);
    EXPECT_EQ(parse(with({{"rope_theta", 500.0}, {"rope_parameters", parameters}})).rope.theta, 500.0);
    EXPECT_EQ(parse(with({{"rope_scaling", {{"type", "default"}}}})).rope.theta, 10000.0);
    expect_refused({{"rope_parameters", parameters}}, {"rope_theta", "500", "10000"});
    expect_refused({{"rope_theta", 0}}, {"rope_theta", "0"});
    expect_refused({{"rope_theta", "big"}}, {"rope_theta", "big"});
    expect_refused({{"rope_parameters", 7}}, {"rope_parameters", "7"});
    for (const char* type : {"dynamic", "longrope", "mrope"})
        for (const char* spelling : {"rope_type", "type"})
            for (const char* key : {"rope_scaling", "rope_parameters"})
                expect_refused({{key, {{spelling, type}, {"factor", 2.0}}}}, {"rope_type", type, "llama3, yarn"});
    expect_refused({{"rope_scaling", {{"type", "linear"}}}}, {"linear", "factor"});
    expect_refused({{"rope_scaling", {{"type", "linear"}, {"rope_type", "yarn"}, {"factor", 2.0}}}}, {"rope_type", "linear", "yarn"});
    EXPECT_EQ(parse(with({{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}})).rope.factor, 2.0);
}

TEST(ModelConfig, what_would_change_the_mathematics_is_refused) {
    expect_refused({{"architectures", {"GemmaForCausalLM"}}}, {"GemmaForCausalLM", "LlamaForCausalLM"});
    expect_refused({{"architectures", {"MistralForCausalLM"}}}, {"MistralForCausalLM", "model_type 'llama'", "disagree"});
    expect_refused({{"architectures", json::array()}}, {"architectures"});
    expect_refused({{"model_type", "gemma"}}, {"model_type", "gemma"});
    expect_refused({{"hidden_act", "gelu"}}, {"hidden_act", "gelu"});
    const json mistral = {{"architectures", {"MistralForCausalLM"}}, {"model_type", "mistral"}};
    for (const char* key : {"attention_bias", "mlp_bias"}) {
        json config = mistral;
        config[key] = true;
        expect_refused(config, {key, "Mistral"});
    }
    expect_refused({{"attention_dropout", 0.1}}, {"attention_dropout", "0.1"});
    expect_refused({{"num_local_experts", 8}}, {"num_local_experts"});
    expect_refused({{"quantization_config", {{"bits", 4}}}}, {"quantization_config", "dequantized"});
    expect_refused({{"sliding_window", 7}}, {"sliding_window"});
    expect_refused({{"partial_rotary_factor", 0.5}}, {"partial_rotary_factor", "0.5"});
    expect_refused({{"tie_word_embeddings", "yes"}}, {"tie_word_embeddings", "yes"});
    expect_refused({{"rms_norm_eps", -1.0}}, {"rms_norm_eps", "-1"});
    EXPECT_NO_THROW(
        parse(with({{"attention_bias", false}, {"attention_dropout", 0.0}, {"num_local_experts", 1}, {"hidden_act", "swish"}})));
}

TEST(ModelConfig, text_that_is_no_configuration) {
    for (const char* text : {"", "[]", "7", "{\"vocab_size\": 5", "{\"vocab_size\": 5, \"vocab_size\": 6}"})
        EXPECT_THROW(parse_model_config(text, "c.json"), InputError) << text;
}

}  // namespace
}  // namespace sherd
