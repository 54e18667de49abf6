#pragma once
/// What a Hugging Face config.json says about the mathematics of a decoder.
#include <cstdint>
#include <string>
#include <vector>

namespace sherd {

/// How positions become angles: frequencies by type, and a factor of cosine and sine (yarn).
struct RopeConfig {
    enum class Type { plain, linear, llama3, yarn };
    Type type = Type::plain;
    double theta = 10000.0;
    double factor = 1.0;                                   ///< linear, llama3, yarn
    double low_freq_factor = 1.0, high_freq_factor = 4.0;  ///< llama3
    double original_positions = 0;                         ///< llama3, yarn
    double beta_fast = 32, beta_slow = 1;                  ///< yarn
    double attention_factor = 1.0;                         ///< yarn, resolved
    bool truncate = true;                                  ///< yarn
};

/// A decoder of the Llama kind. Every difference between models is a value here, never a branch on a family's name.
struct ModelConfig {
    std::string architecture;       ///< "LlamaForCausalLM", ...
    std::int64_t vocabulary = 0;    ///< rows of the embedding
    std::int64_t hidden = 0;        ///< width of the residual stream
    std::int64_t intermediate = 0;  ///< width of the MLP
    std::int64_t layers = 0;
    std::int64_t heads = 0;          ///< query heads
    std::int64_t kv_heads = 0;       ///< key and value heads; divides heads
    std::int64_t head_dim = 0;       ///< even
    std::int64_t max_positions = 0;  ///< positions the model was made for
    double norm_epsilon = 1e-6;
    RopeConfig rope;
    bool tied = false;  ///< the head is the embedding
    bool qkv_bias = false, output_bias = false, mlp_bias = false;
    bool head_norm = false;             ///< RMSNorm of each query and key head before the rotary embedding
    std::vector<std::int64_t> windows;  ///< by layer: a token sees itself and window - 1 before it; 0: all before it
    std::vector<std::string> assumed;   ///< "rms_norm_eps = 1e-6": keys that were absent, with the default taken

    std::int64_t query_width() const noexcept { return heads * head_dim; }
    std::int64_t kv_width() const noexcept { return kv_heads * head_dim; }
};

/// Angle per position of each pair of a head, [head_dim / 2], as in transformers' modeling_rope_utils: default; linear (Chen et al. 2023,
/// "Position Interpolation"); llama3 (Llama 3.1); yarn (Peng et al. 2023).
std::vector<double> rotary_frequencies(const RopeConfig& rope, std::int64_t head_dim);

/// Reads config.json. `name` is the file for messages. Absent keys take the defaults of that family in transformers; a key that changes the
/// mathematics and is not supported is refused. Throws InputError naming key, value and rule.
ModelConfig parse_model_config(const std::string& text, const std::string& name);

}  // namespace sherd
