#pragma once
/// What a rank's state and buffers take, before anything is allocated, and which keys of the deck would make it less.
#include "train/engine.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace sherd {

/// All that sizes depend on. A changed copy says what another deck would take.
struct MemoryQuestion {
    const Inputs* inputs;
    const Backend* backend;
    TrainingState::Purpose purpose;
    DType compute;
    ShardPlan plan;
    ShardGroups groups;
    ShardOptions options;
    int rank;
    std::int64_t micro_tokens;
    std::int64_t longest;              ///< tokens of the longest document, after cutting
    bool micro_tokens_auto = false;    ///< micro_tokens follows from `longest`
    bool plan_by_keys = false;         ///< sharding.parameters, gradients or optimizer are in the deck: sharding.strategy yields to them
    bool resumes = false;              ///< from a checkpoint, for which some keys are fixed
    bool bf16_everywhere = false;      ///< every rank's device has it in hardware
    bool own_attention = false;        ///< as device.attention = own
    std::uint64_t device_staging = 0;  ///< of the communicator
};

/// Device memory by class, without what the program itself takes.
std::vector<StateClass> planned_memory(const MemoryQuestion& question);

std::uint64_t total_bytes(const std::vector<StateClass>& classes);

/// A change of the deck and the bytes that it would free on this rank.
struct Saving {
    std::string change;  ///< "batch.micro_tokens = 2048"
    std::uint64_t bytes;
};

/// The best change of each key that frees anything, largest first.
std::vector<Saving> possible_savings(const MemoryQuestion& question);

/// "sharding.strategy = full_shard would free 3.2 GiB, batch.micro_tokens = 2048 1.1 GiB"; what else helps where no key does.
std::string savings_text(const MemoryQuestion& question);

/// "exp_avg (world) 10.0 GiB, weights (world) 5.0 GiB": largest first.
std::string largest_first(std::vector<StateClass> classes);

}  // namespace sherd
