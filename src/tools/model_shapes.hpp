#pragma once
/// Sizes of Llama models that the tools make and measure.
#include "sherd/runtime/error.hpp"
#include "sherd/tensor/dtype.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace sherd::tools {

struct ModelShape {
    std::string_view name;
    std::int64_t vocabulary, hidden, intermediate, layers, heads, kv_heads, positions;
    bool tied;
    DType stored;  ///< type of its weights file
    std::int64_t head_dim() const noexcept { return hidden / heads; }
    std::int64_t kv_size() const noexcept { return head_dim() * kv_heads; }
    std::int64_t block_parameters() const noexcept {
        return 2 * hidden * hidden + 2 * kv_size() * hidden + 3 * intermediate * hidden + 2 * hidden;
    }
    std::int64_t parameters() const noexcept { return (tied ? 1 : 2) * vocabulary * hidden + layers * block_parameters() + hidden; }
    /// Of matrices that every token is multiplied with: not of an embedding that is only looked up.
    std::int64_t multiplied_parameters() const noexcept { return vocabulary * hidden + layers * block_parameters() + hidden; }
};

/// smollm2, llama1b and llama8b have the sizes of SmolLM2-135M, Llama 3.2 1B and Llama 3.1 8B.
inline constexpr std::array<ModelShape, 5> model_shapes{{
    {"tiny", 4096, 288, 768, 6, 6, 6, 2048, true, DType::f32},
    {"small", 8192, 512, 1376, 8, 8, 4, 2048, false, DType::f32},
    {"smollm2", 49152, 576, 1536, 30, 9, 3, 2048, true, DType::f32},
    {"llama1b", 128256, 2048, 8192, 16, 32, 8, 8192, true, DType::bf16},
    {"llama8b", 128256, 4096, 14336, 32, 32, 8, 8192, false, DType::bf16},
}};

inline ModelShape shape_named(std::string_view name) {
    const auto found = std::find_if(model_shapes.begin(), model_shapes.end(), [&](const ModelShape& s) { return s.name == name; });
    if (found != model_shapes.end()) return *found;
    std::string known;
    for (const ModelShape& s : model_shapes) known += (known.empty() ? "" : ", ") + std::string(s.name);
    throw UsageError("there is no model '{}': expected one of {}", name, known);
}

}  // namespace sherd::tools
