#pragma once
/// Plans of cuDNN for attention: what its heuristic names first, never chosen by timing; each built once and kept.
#include "backend/cuda/stream.hpp"

#include "sherd/tensor/dtype.hpp"

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

struct cudnnContext;
namespace cudnn_frontend::graph {
class Graph;
}

namespace sherd::cuda {

/// What a graph of cuDNN is made of. Tensors are [rows, heads * head_dim] as in Backend, statistics [rows, heads].
struct AttentionGraph {
    bool backward;
    DType type;  ///< bf16 or fp16
    std::int64_t heads, kv_heads, head_dim;
    std::int64_t window;  ///< as AttentionShape
    float scale;
    std::int64_t documents, longest;  ///< at most; what is beyond the documents there are has length 0
    std::int64_t rows;                ///< at most, of all documents; bounds the workspace of the backward pass, else 0
    auto operator<=>(const AttentionGraph&) const = default;
};

/// Tensors of a graph; the numbers are their uids. Offsets: int64 [documents + 1], in elements of their tensors; lengths: int32
/// [documents].
enum class Operand : std::int64_t {
    query = 1,
    key,
    value,
    out,
    statistics,
    lengths,
    query_offsets,
    key_offsets,
    statistics_offsets,
    out_gradient,
    query_gradient,
    key_gradient,
    value_gradient
};

struct CudnnPlan {
    std::shared_ptr<cudnn_frontend::graph::Graph> graph;
    std::uint64_t workspace = 0;  ///< bytes
    std::string refusal;          ///< why cuDNN has none, in one line; empty: it has
};

/// Checks a graph and finds its plan. handle: none for a graph that was told the properties of a device that need not be there.
CudnnPlan build_plan(const std::shared_ptr<cudnn_frontend::graph::Graph>& graph, cudnnContext* handle);

/// As loaded: 91900 for 9.19.0.
std::int64_t cudnn_version() noexcept;

class CudnnPlans {
  public:
    /// Of the calling thread's GPU. Throws DeviceError.
    CudnnPlans();
    ~CudnnPlans();
    CudnnPlans(const CudnnPlans&) = delete;
    CudnnPlans& operator=(const CudnnPlans&) = delete;

    const CudnnPlan& find(const AttentionGraph& of);
    /// Enqueues a plan. Throws DeviceError.
    void run(CudaStream& stream, const CudnnPlan& plan, const std::vector<std::pair<Operand, const void*>>& operands, void* workspace);

  private:
    cudnnContext* handle_ = nullptr;
    std::map<AttentionGraph, CudnnPlan> plans_;
};

}  // namespace sherd::cuda
