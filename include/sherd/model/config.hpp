#pragma once
/// What a Hugging Face config.json says about the mathematics of a decoder.
#include <cstdint>
#include <string>
#include <vector>

namespace sherd {

/// A Llama decoder. Every difference between models is a value here, never a branch on a family's name.
struct ModelConfig {
    std::string architecture;       ///< "LlamaForCausalLM"
    std::int64_t vocabulary = 0;    ///< rows of the embedding
    std::int64_t hidden = 0;        ///< width of the residual stream
    std::int64_t intermediate = 0;  ///< width of the MLP
    std::int64_t layers = 0;
    std::int64_t heads = 0;          ///< query heads
    std::int64_t kv_heads = 0;       ///< key and value heads; divides heads
    std::int64_t head_dim = 0;       ///< even
    std::int64_t max_positions = 0;  ///< positions the model was made for
    double norm_epsilon = 1e-6;
    double rope_theta = 10000.0;
    bool tied = false;                 ///< the head is the embedding
    std::vector<std::string> assumed;  ///< "rms_norm_eps = 1e-6": keys that were absent, with the default taken

    std::int64_t query_width() const noexcept { return heads * head_dim; }
    std::int64_t kv_width() const noexcept { return kv_heads * head_dim; }
};

/// Reads config.json. `name` is the file for messages. Absent keys take the defaults of transformers' LlamaConfig; a key that changes the
/// mathematics and is not supported is refused. Throws InputError naming key, value and rule.
ModelConfig parse_model_config(const std::string& text, const std::string& name);

}  // namespace sherd
