#pragma once
/// The parameters of a decoder in units: embedding, each block, final norm and head. Names and shapes are Hugging Face's.
#include "sherd/io/weight_source.hpp"
#include "sherd/model/config.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace sherd {

/// One parameter, row-major.
struct ParameterSpec {
    std::string name;
    std::vector<std::int64_t> shape;
    std::int64_t elements() const noexcept;
    /// Weight decay applies to parameters of two or more dimensions, as in the Hugging Face Trainer.
    bool decays() const noexcept { return shape.size() >= 2; }
};

/// Parameters that are gathered, reduced and released together.
struct UnitSpec {
    std::string name;  ///< "embedding", "block 3", "head", or "outer" (tied: embedding, final norm and head in one)
    std::vector<ParameterSpec> parameters;
    bool outer = false;  ///< around the blocks: embedding, head
};

/// Units in forward order: [embedding, block 0 .. block L-1, head], or [outer, block 0 .. block L-1] for a tied model.
std::vector<UnitSpec> parameter_units(const ModelConfig& config);

/// Where a block's parameters stand in its unit; -1: the model has no such parameter.
struct BlockIndex {
    explicit BlockIndex(const ModelConfig& config);
    int norm1 = 0, query = 1, key = 2, value = 3, output = 4, norm2 = 5, gate = 6, up = 7, down = 8;
    int query_norm = -1, key_norm = -1, query_bias = -1, key_bias = -1, value_bias = -1, output_bias = -1;
    int gate_bias = -1, up_bias = -1, down_bias = -1;
};

/// Number of parameters over all units.
std::int64_t parameter_count(const std::vector<UnitSpec>& units);

/// A buffer that old folders store and no model uses: `*.rotary_emb.inv_freq`.
bool is_ignored_tensor(const std::string& name);

/// Compares a source with what its config needs: every parameter present, of the right shape and a float type, and nothing else but
/// ignored tensors. A tied model may hold `lm_head.weight`; it is not read.
/// Throws InputError naming where, expected and found; notices go to the log.
void check_parameters(const ModelConfig& config, const WeightSource& source);

}  // namespace sherd
