// When cuDNN computes attention, and with what memory.
//
// A plan is of a number of documents and of the longest one; micro-batches differ in both. So both are rounded up, to few values, and what
// is beyond the documents there are has no rows: blocks of such rows end at once. Scratch of the backward pass is planned for documents
// that are all of the longest one's length; a micro-batch that needs more, many short ones beside a long one, is the own kernels'.
//
// Tiles of the last document reach into surplus rows, whose numbers count for nothing but must be finite. They are (tensor.hpp).
#include "backend/cuda/cudnn/plans.hpp"
#include "backend/cuda/fused_attention.hpp"
#include "backend/cuda/packed.hpp"
#include "backend/memory_account.hpp"

#include "sherd/backend/arena.hpp"
#include "sherd/runtime/error.hpp"
#include "sherd/runtime/log.hpp"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <initializer_list>
#include <map>
#include <set>
#include <tuple>

namespace sherd::cuda {

namespace {

/// 9.10.0 and 9.10.1 compute attention wrongly, as the frontend says; before 9.6, packed documents with grouped queries are not served.
constexpr std::int64_t least_version = 91002;
/// More than that in one micro-batch are short: not worth a plan.
constexpr std::int64_t most_documents = 1024;
/// Rows that cuDNN looks at, documents times the longest one, for each that there is: blocks beyond a document's end cost little, but so
/// many cost more than the work.
constexpr std::int64_t most_blown_up = 8, few_rows = std::int64_t{1} << 16;
/// Share of the GPU's memory that a workspace may take unless cuDNN is demanded. On Hopper deterministic gradients go through a matrix of
/// 16-bit numbers, heads x longest^2 for each document: 1 GiB for 32 heads and 4,096 rows.
constexpr std::uint64_t memory_parts = 32;

std::int64_t round_documents(std::int64_t n) {
    return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(n)));
}

/// Four lengths an octave: at most a quarter more rows, and lengths that are powers of two stay what they are.
std::int64_t round_length(std::int64_t n) {
    const std::int64_t least = std::max<std::int64_t>(n, 128),
                       step = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(least))) / 4;
    return (least + step - 1) / step * step;
}

/// Why cuDNN computes no attention of that kind; empty: it may.
std::string unsuited(DType type, const AttentionShape& shape) {
    if (type != DType::bf16 && type != DType::f16) return fmt::format("it takes bf16 and fp16, not {}", name_of(type));
    if (shape.head_dim % 8 != 0) return fmt::format("the size of a head, {}, is no multiple of 8", shape.head_dim);
    return "";
}

bool aligned(std::initializer_list<const void*> addresses) {
    return std::ranges::all_of(addresses, [](const void* a) { return reinterpret_cast<std::uintptr_t>(a) % 16 == 0; });
}

/// Scratch of an operation.
struct Parts {
    void* workspace;
    float* statistics;
    PackedLists lists;
};

Parts lay_out(Arena& arena, const AttentionGraph& of, std::int64_t rows, std::uint64_t workspace) {
    const auto list = [&](std::size_t each) { return static_cast<std::uint64_t>(of.documents + 1) * each; };
    Parts parts{};
    parts.workspace = arena.take(workspace, "workspace");
    parts.statistics = arena.take<float>(static_cast<std::uint64_t>(rows * of.heads) * sizeof(float), "statistics");
    parts.lists.queries = arena.take<std::int64_t>(list(sizeof(std::int64_t)), "lists");
    parts.lists.keys = arena.take<std::int64_t>(list(sizeof(std::int64_t)), "lists");
    parts.lists.statistics = arena.take<std::int64_t>(list(sizeof(std::int64_t)), "lists");
    parts.lists.lengths = arena.take<std::int32_t>(list(sizeof(std::int32_t)), "lists");
    return parts;
}

std::uint64_t bytes_of(const AttentionGraph& of, std::int64_t rows, std::uint64_t workspace) {
    Arena sizes;
    (void)lay_out(sizes, of, rows, workspace);
    return sizes.bytes();
}

using Operands = std::vector<std::pair<Operand, const void*>>;

/// Those of both passes.
Operands operands_of(const Parts& parts, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out) {
    return {{Operand::query, q.data},
            {Operand::key, k.data},
            {Operand::value, v.data},
            {Operand::out, out.data},
            {Operand::statistics, parts.statistics},
            {Operand::lengths, parts.lists.lengths},
            {Operand::query_offsets, parts.lists.queries},
            {Operand::key_offsets, parts.lists.keys},
            {Operand::statistics_offsets, parts.lists.statistics}};
}

/// What of an attention does not change from one micro-batch to the next: type, heads, heads of keys, size of a head, window.
using Kind = std::tuple<DType, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
Kind kind_of(DType type, const AttentionShape& shape) {
    return {type, shape.heads, shape.kv_heads, shape.head_dim, shape.window};
}

class CudnnAttention final : public FusedAttention {
  public:
    CudnnAttention(const Gpu& gpu, bool demanded) : demanded_(demanded), most_workspace_(gpu.memory_bytes / memory_parts) {}

    std::string description() const override { return version_text(); }

    bool forward(CudaStream& stream, const Tensor& out, float* lse, const Tensor& q, const Tensor& k, const Tensor& v,
                 const Documents& documents, const AttentionShape& shape) override;
    bool backward(CudaStream& stream, const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dout, const Tensor& out,
                  const float* lse, const Tensor& q, const Tensor& k, const Tensor& v, const Documents& documents,
                  const AttentionShape& shape, const Tensor& scratch) override;
    std::int64_t scratch(std::int64_t rows, std::int64_t longest, const AttentionShape& shape, DType compute) override;

    static std::string version_text() {
        const std::int64_t version = cudnn_version();
        return fmt::format("cuDNN {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
    }

  private:
    bool serves(const char* pass, DType type, std::int64_t rows, const Documents& documents, const AttentionShape& shape,
                std::initializer_list<const void*> addresses);
    void tell(const char* pass, const std::string& why);
    void tell_of_some(const char* pass, const std::string& why);
    bool refuse(const char* pass, const std::string& why);

    bool demanded_;
    std::uint64_t most_workspace_;
    CudnnPlans plans_;
    std::set<std::string> told_;
    std::map<Kind, bool> gradients_planned_;  ///< whether scratch() found that cuDNN is to compute them
};

constexpr const char* forward_pass = "the forward pass of attention";
constexpr const char* backward_pass = "the backward pass of attention";

AttentionGraph graph_of(bool backward, DType type, std::int64_t rows, std::int64_t documents, std::int64_t longest,
                        const AttentionShape& shape) {
    const std::int64_t length = round_length(longest);
    return {.backward = backward,
            .type = type,
            .heads = shape.heads,
            .kv_heads = shape.kv_heads,
            .head_dim = shape.head_dim,
            .window = shape.window < length ? shape.window : 0,
            .scale = shape.scale,
            .documents = round_documents(documents),
            .longest = length,
            .rows = backward ? static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(rows))) : 0};
}

void CudnnAttention::tell(const char* pass, const std::string& why) {
    if (told_.insert(pass).second) log::notice(fmt::format("{} is own kernels' instead of cuDNN's: {}", pass, why));
}

/// Micro-batches differ from rank to rank.
void CudnnAttention::tell_of_some(const char* pass, const std::string& why) {
    if (told_.insert(pass + std::string(" of some")).second)
        log::warning_of_any_rank(
            fmt::format("{} of some micro-batches of rank {} is own kernels' instead of cuDNN's: {}", pass, process_rank(), why));
}

bool CudnnAttention::refuse(const char* pass, const std::string& why) {
    if (demanded_)
        throw DeviceError("device.attention = cudnn, and cuDNN does not serve {} on rank {} (host {}): {}; say auto or own", pass,
                          process_rank(), host_name(), why);
    tell(pass, why);
    return false;
}

bool CudnnAttention::serves(const char* pass, DType type, std::int64_t rows, const Documents& documents, const AttentionShape& shape,
                            std::initializer_list<const void*> addresses) {
    if (documents.count == 0 || documents.longest == 0) return false;
    if (const std::string why = unsuited(type, shape); !why.empty()) return demanded_ && refuse(pass, why);
    if (documents.count > most_documents) {
        tell_of_some(pass, "they have more than 1,024 documents");
        return false;
    }
    if (round_documents(documents.count) * round_length(documents.longest) > std::max(few_rows, most_blown_up * round_length(rows))) {
        tell_of_some(pass, "many short documents stand beside a long one");
        return false;
    }
    return aligned(addresses);
}

bool CudnnAttention::forward(CudaStream& stream, const Tensor& out, float* lse, const Tensor& q, const Tensor& k, const Tensor& v,
                             const Documents& documents, const AttentionShape& shape) {
    if (!serves(forward_pass, q.dtype, q.rows, documents, shape, {out.data, q.data, k.data, v.data})) return false;
    const AttentionGraph of = graph_of(false, q.dtype, q.rows, documents.count, documents.longest, shape);
    const CudnnPlan& plan = plans_.find(of);
    if (!plan.refusal.empty()) return refuse(forward_pass, plan.refusal);
    if (const std::uint64_t bytes = bytes_of(of, q.rows, plan.workspace); bytes > stream.scratch().bytes()) {
        tell_of_some(forward_pass, fmt::format("{} rows need {} of scratch, and stream '{}' has {}", q.rows, readable_bytes(bytes),
                                               stream.name(), readable_bytes(stream.scratch().bytes())));
        return false;
    }
    Arena arena(stream.scratch().data());
    const Parts parts = lay_out(arena, of, q.rows, plan.workspace);
    packed_lists(stream.get(), parts.lists, documents, of.documents, shape);
    plans_.run(stream, plan, operands_of(parts, q, k, v, out), parts.workspace);
    statistics_by_heads(stream.get(), lse, parts.statistics, q.rows, shape.heads, documents);
    zero_surplus(stream.get(), documents, out);
    return true;
}

bool CudnnAttention::backward(CudaStream& stream, const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dout,
                              const Tensor& out, const float* lse, const Tensor& q, const Tensor& k, const Tensor& v,
                              const Documents& documents, const AttentionShape& shape, const Tensor& scratch) {
    if (!serves(backward_pass, q.dtype, q.rows, documents, shape, {dq.data, dk.data, dv.data, dout.data, out.data, q.data, k.data, v.data}))
        return false;
    if (const auto planned = gradients_planned_.find(kind_of(q.dtype, shape));
        planned != gradients_planned_.end() && !planned->second && !demanded_)
        return false;  // told when memory was planned
    const AttentionGraph of = graph_of(true, q.dtype, q.rows, documents.count, documents.longest, shape);
    const CudnnPlan& plan = plans_.find(of);
    if (!plan.refusal.empty()) return refuse(backward_pass, plan.refusal);
    auto* const begin = static_cast<unsigned char*>(scratch.data);
    const std::uint64_t skipped = -reinterpret_cast<std::uintptr_t>(begin) % Arena::alignment;
    if (const std::uint64_t bytes = skipped + bytes_of(of, q.rows, plan.workspace); bytes > scratch.bytes()) {
        tell_of_some(backward_pass, fmt::format("{} documents of up to {} rows need {} of scratch, and {} were planned", documents.count,
                                                documents.longest, readable_bytes(bytes), readable_bytes(scratch.bytes())));
        return false;
    }
    Arena arena(begin + skipped);
    const Parts parts = lay_out(arena, of, q.rows, plan.workspace);
    packed_lists(stream.get(), parts.lists, documents, of.documents, shape);
    statistics_by_rows(stream.get(), parts.statistics, lse, q.rows, shape.heads);
    Operands operands = operands_of(parts, q, k, v, out);
    operands.insert(operands.end(), {{Operand::out_gradient, dout.data},
                                     {Operand::query_gradient, dq.data},
                                     {Operand::key_gradient, dk.data},
                                     {Operand::value_gradient, dv.data}});
    plans_.run(stream, plan, operands, parts.workspace);
    zero_surplus(stream.get(), documents, dq, dk, dv);
    return true;
}

/// Also the place where the plans of most micro-batches are built, before the first step. Says what will not be cuDNN's, and throws
/// nothing: plans of memory are also made for what will not be.
std::int64_t CudnnAttention::scratch(std::int64_t rows, std::int64_t longest, const AttentionShape& shape, DType compute) {
    const std::int64_t length = std::min(rows, longest);
    if (length == 0 || !unsuited(compute, shape).empty()) return 0;
    bool& planned = gradients_planned_[kind_of(compute, shape)] = false;
    const std::int64_t documents = (rows + length - 1) / length;
    if (documents > most_documents) return 0;
    const CudnnPlan& ahead = plans_.find(graph_of(false, compute, rows, documents, length, shape));
    if (!ahead.refusal.empty()) tell(forward_pass, ahead.refusal);
    const AttentionGraph of = graph_of(true, compute, rows, documents, length, shape);
    const CudnnPlan& plan = plans_.find(of);
    if (!plan.refusal.empty()) {
        tell(backward_pass, plan.refusal);
        return 0;
    }
    const std::uint64_t bytes = bytes_of(of, rows, plan.workspace) + Arena::alignment;
    if (bytes > most_workspace_ && !demanded_) {
        tell(backward_pass, fmt::format("{} documents of {} rows need {} of scratch, more than 1/{} of the GPU's memory", documents, length,
                                        readable_bytes(bytes), memory_parts));
        return 0;
    }
    planned = true;
    return static_cast<std::int64_t>((bytes + sizeof(float) - 1) / sizeof(float));
}

/// From 9.25 on there are deterministic gradients on Hopper without that matrix, slower ones; the frontend takes them for what would need a
/// larger matrix than it is told here.
void limit_matrices(std::uint64_t bytes) {
    static const int done = ::setenv("CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT", std::to_string(bytes).c_str(), 0);
    (void)done;
}

}  // namespace

std::unique_ptr<FusedAttention> make_cudnn_attention(const Gpu& gpu, AttentionBy by) {
    if (by == AttentionBy::own) return nullptr;
    const bool demanded = by == AttentionBy::cudnn;
    const auto without = [demanded](const std::string& why) -> std::unique_ptr<FusedAttention> {
        if (demanded)
            throw DeviceError("device.attention = cudnn on rank {} (host {}): {}; say auto or own", process_rank(), host_name(), why);
        return nullptr;
    };
    if (gpu.major < 8) return without(fmt::format("cuDNN's attention needs sm_80, and {} has sm_{}{}", gpu.name, gpu.major, gpu.minor));
    if (cudnn_version() < least_version)
        return without(CudnnAttention::version_text() + " is loaded, and 9.10.2 is the oldest that will do");
    if (gpu.major == 9 && cudnn_version() >= 92500) limit_matrices(gpu.memory_bytes / memory_parts);
    return std::make_unique<CudnnAttention>(gpu, demanded);
}

}  // namespace sherd::cuda
