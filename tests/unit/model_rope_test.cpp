/// Rotary keys and frequencies. Expected frequencies: head_dim 16 in transformers 5.24 (float32), by
///
///     config = LlamaConfig(head_dim=16, max_position_embeddings=POSITIONS, rope_parameters=KEYS)
///     ROPE_INIT_FUNCTIONS[KEYS["rope_type"]](config, torch.device("cpu"))        # transformers.modeling_rope_utils
#include "sherd/model/config.hpp"
#include "sherd/runtime/error.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <string>
#include <vector>

namespace sherd {
namespace {

using nlohmann::json;

json base(std::int64_t positions) {
    return {{"model_type", "llama"},
            {"vocab_size", 8},
            {"hidden_size", 64},
            {"intermediate_size", 8},
            {"num_hidden_layers", 1},
            {"num_attention_heads", 4},
            {"max_position_embeddings", positions}};
}

RopeConfig read(std::int64_t positions, const json& more) {
    json config = base(positions);
    config.update(more);
    return parse_model_config(config.dump(), "config.json").rope;
}

void expect_refused(const json& more, const std::vector<std::string>& parts) {
    try {
        read(64, more);
        ADD_FAILURE() << "accepted: " << more;
    } catch (const InputError& e) {
        const std::string message = e.what();
        for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << "no '" << part << "' in: " << message;
    }
}

struct Known {
    const char* name;
    std::int64_t positions;
    json keys;
    std::vector<double> frequencies;
    double attention_factor;
};

std::vector<Known> known() {
    return {
        {"linear",
         64,
         {{"rope_type", "linear"}, {"rope_theta", 10000.0}, {"factor", 4.0}},
         {0.25, 0.079056941, 0.0250000004, 0.00790569466, 0.00249999994, 0.000790569466, 0.000250000012, 7.90569466e-05},
         1.0},
        {"llama3",
         131072,
         {{"rope_type", "llama3"},
          {"rope_theta", 500000.0},
          {"factor", 8.0},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 8192}},
         {1.0, 0.193922758, 0.0376060307, 0.00729266508, 0.000524846022, 3.42810235e-05, 6.64786967e-06, 1.28917316e-06},
         1.0},
        {"yarn",
         131072,
         {{"rope_type", "yarn"}, {"rope_theta", 1000000.0}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}},
         {1.0, 0.177827939, 0.0316227786, 0.00421755994, 0.000500000024, 4.44569851e-05, 7.90569356e-06, 1.40585337e-06},
         1.138629436111989},
        {"yarn_betas",
         4096,
         {{"rope_type", "yarn"},
          {"rope_theta", 10000.0},
          {"factor", 16.0},
          {"original_max_position_embeddings", 256},
          {"beta_fast", 16.0},
          {"beta_slow", 2.0},
          {"truncate", false},
          {"attention_factor", 1.5}},
         {1.0, 0.285350084, 0.0383304954, 0.00197642366, 0.000624999986, 0.000197642366, 6.2500003e-05, 1.97642366e-05},
         1.5},
        {"yarn_mscale",
         4096,
         {{"rope_type", "yarn"},
          {"rope_theta", 10000.0},
          {"factor", 40.0},
          {"original_max_position_embeddings", 4096},
          {"mscale", 1.0},
          {"mscale_all_dim", 0.8}},
         {1.0, 0.316227764, 0.100000001, 0.0239147246, 0.00512499968, 0.000849862176, 2.49999994e-05, 7.90569447e-06},
         1.0569662567531275},
    };
}

/// Float32 rounding of the reference: its angles are products of three rounded numbers.
void expect_known(const RopeConfig& rope, const Known& expected) {
    const std::vector<double> found = rotary_frequencies(rope, 16);
    ASSERT_EQ(found.size(), expected.frequencies.size());
    for (std::size_t i = 0; i < found.size(); ++i)
        EXPECT_NEAR(found[i], expected.frequencies[i], 5e-7 * expected.frequencies[i]) << expected.name << " pair " << i;
    EXPECT_NEAR(rope.attention_factor, expected.attention_factor, 1e-12) << expected.name;
}

TEST(Rope, frequencies_as_transformers_has_them) {
    for (const Known& k : known()) expect_known(read(k.positions, {{"rope_parameters", k.keys}}), k);
}

TEST(Rope, the_old_spellings_mean_the_same) {
    for (const Known& k : known()) {
        json scaling = k.keys;
        scaling.erase("rope_theta");
        const json theta = k.keys.at("rope_theta");
        expect_known(read(k.positions, {{"rope_theta", theta}, {"rope_scaling", scaling}}), k);
        scaling["type"] = scaling["rope_type"];
        expect_known(read(k.positions, {{"rope_theta", theta}, {"rope_scaling", scaling}}), k);
        scaling.erase("rope_type");
        expect_known(read(k.positions, {{"rope_theta", theta}, {"rope_scaling", scaling}}), k);
        expect_known(read(k.positions, {{"rope_theta", theta}, {"rope_scaling", scaling}, {"rope_parameters", k.keys}}), k);
    }
}

TEST(Rope, plain_frequencies_fall_by_the_base) {
    const std::vector<double> found = rotary_frequencies(read(64, {{"rope_theta", 500000.0}}), 8);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(found[i], std::pow(500000.0, -static_cast<double>(i) / 4), 1e-15);
    EXPECT_EQ(rotary_frequencies(read(64, {{"rope_scaling", nullptr}}), 2), std::vector<double>{1.0});
}

TEST(Rope, original_positions) {
    const json keys = {{"rope_type", "yarn"}, {"rope_theta", 100.0}, {"factor", 2.0}};
    EXPECT_EQ(read(64, {{"rope_parameters", keys}}).original_positions, 64) << "absent: max_position_embeddings";
    json inside = keys;
    inside["original_max_position_embeddings"] = 16;
    EXPECT_EQ(read(64, {{"rope_parameters", inside}}).original_positions, 16);
    EXPECT_EQ(read(64, {{"rope_parameters", inside}, {"original_max_position_embeddings", 32}}).original_positions, 32);
    inside.erase("factor");
    EXPECT_EQ(read(64, {{"rope_parameters", inside}}).factor, 4) << "absent: max_position_embeddings over the original positions";
}

TEST(Rope, what_cannot_be_is_refused) {
    const auto scaled = [](json keys) { return json{{"rope_scaling", std::move(keys)}}; };
    expect_refused(scaled({{"rope_type", "llama3"}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}}), {"llama3", "'factor'"});
    expect_refused(scaled({{"rope_type", "llama3"}, {"factor", 8.0}, {"high_freq_factor", 4.0}}), {"llama3", "'low_freq_factor'"});
    expect_refused(scaled({{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 1.0}}), {"llama3", "'high_freq_factor'"});
    expect_refused(scaled({{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 4.0}, {"high_freq_factor", 4.0}}),
                   {"high_freq_factor = 4", "low_freq_factor = 4"});
    for (const json& bad : {json(0), json(-2.0), json("two"), json(true)})
        expect_refused(scaled({{"rope_type", "linear"}, {"factor", bad}}), {"factor", bad.dump()});
    expect_refused(scaled({{"rope_type", 7}}), {"rope_type", "7"});
    expect_refused(scaled({{"rope_type", "su"}}), {"'su'", "default, linear, llama3, yarn"});
    expect_refused(scaled({{"type", "yarn"}, {"factor", 2.0}, {"truncate", "no"}}), {"truncate", "no"});
    expect_refused({{"rope_theta", 100.0}, {"rope_scaling", {{"type", "linear"}, {"factor", 2.0}, {"rope_theta", 200.0}}}},
                   {"rope_theta", "100", "200"});
    expect_refused(
        {{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}, {"rope_parameters", {{"rope_type", "linear"}, {"factor", 4.0}}}},
        {"factor", "2", "4"});
    expect_refused({{"rope_parameters", {{"full_attention", {{"rope_theta", 1.0}}}}}}, {"rope_parameters.full_attention", "kind of layer"});
    expect_refused({{"rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.25}}}}, {"partial_rotary_factor", "0.25"});
    EXPECT_NO_THROW(read(64, {{"partial_rotary_factor", 1.0}}));
}

}  // namespace
}  // namespace sherd
