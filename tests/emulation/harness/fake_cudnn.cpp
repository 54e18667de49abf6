/// Stand-in for cuDNN and its frontend (fake_cudnn/): attention over packed documents by plain loops, as an operation of the handle's
/// stream.
///
/// Refuses what the frontend's checks refuse, as far as the program could ask for it (scaled_dot_product_flash_attention.h and
/// sdpa_support_surface.h of version 1.32 with cuDNN 9.19): by compute capability, size of heads, layout, missing masks. Its workspace is
/// as large as the library's. Stricter than both: offsets and lengths are looked at when the operation runs, gradients must be
/// deterministic, calls come in the documented order, and no row of no document is touched.
#include "execution.hpp"
#include "fake_cudnn/cudnn_frontend.h"
#include "fake_state.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct cudnnContext {
    cudaStream_t stream = nullptr;
    unsigned device = emu::current_device();
};

#define EMU_CUDNN_CALL(status) \
    if (emu::call_fails(__func__)) return status
#define EMU_FRONTEND_CALL()                                                         \
    if (emu::call_fails(__func__)) return {                                         \
            error_code_t::CUDNN_BACKEND_API_FAILED, "CUDNN_STATUS_EXECUTION_FAILED" \
        }

extern "C" {
std::size_t cudnnGetVersion() {
    return static_cast<std::size_t>(emu::device_options.cudnn);
}
const char* cudnnGetErrorString(cudnnStatus_t status) {
    return status == CUDNN_STATUS_NOT_INITIALIZED ? "CUDNN_STATUS_NOT_INITIALIZED" : "CUDNN_STATUS_BAD_PARAM";
}
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
    EMU_CUDNN_CALL(CUDNN_STATUS_NOT_INITIALIZED);
    *handle = new cudnnContext;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
    delete handle;
    EMU_CUDNN_CALL(CUDNN_STATUS_BAD_PARAM);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    EMU_CUDNN_CALL(CUDNN_STATUS_BAD_PARAM);
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}
}

namespace cudnn_frontend::graph {
namespace {

using emu::Fault;
using Attention = Graph::Attention;

std::size_t size_of(DataType_t type) {
    return type == DataType_t::INT64 ? 8 : type == DataType_t::FLOAT || type == DataType_t::INT32 ? 4 : 2;
}

/// A packed tensor where it lies: element (document, head, row, column) by its declared strides, documents by their offsets.
struct Place {
    unsigned char* data = nullptr;
    DataType_t type = DataType_t::NOT_SET;
    std::vector<std::int64_t> stride;
    const std::int64_t* offsets = nullptr;

    std::int64_t index(std::int64_t document, std::int64_t head, std::int64_t row, std::int64_t column) const {
        return offsets[document] + head * stride[1] + row * stride[2] + column * stride[3];
    }
    float load(std::int64_t i) const {
        if (type == DataType_t::FLOAT) return reinterpret_cast<const float*>(data)[i];
        if (type == DataType_t::HALF) return __half2float(reinterpret_cast<const __half*>(data)[i]);
        return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(data)[i]);
    }
    void store(std::int64_t i, double x) const {
        const auto single = static_cast<float>(x);
        if (type == DataType_t::FLOAT)
            reinterpret_cast<float*>(data)[i] = single;
        else if (type == DataType_t::HALF)
            reinterpret_cast<__half*>(data)[i] = __float2half_rn(single);
        else
            reinterpret_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(single);
    }
};

/// One attention with its addresses.
struct Job {
    Attention of;
    Place q, k, v, o, statistics, d_o, d_q, d_k, d_v;
    const std::int32_t* lengths;
};

/// Columns [first, row] of a row are seen.
std::int64_t first_seen(const Job& job, std::int64_t row) {
    return job.of.window > 0 ? std::max<std::int64_t>(0, row - job.of.window + 1) : 0;
}

double dot(const Place& a, const Place& b, std::int64_t document, std::int64_t a_head, std::int64_t a_row, std::int64_t b_head,
           std::int64_t b_row, std::int64_t size) {
    const std::int64_t at_a = a.index(document, a_head, a_row, 0), at_b = b.index(document, b_head, b_row, 0);
    double sum = 0;
    for (std::int64_t c = 0; c < size; ++c) sum += static_cast<double>(a.load(at_a + c)) * static_cast<double>(b.load(at_b + c));
    return sum;
}

void forward_row(const Job& job, std::int64_t document, std::int64_t head, std::int64_t kv_head, std::int64_t row, std::int64_t size) {
    const std::int64_t first = first_seen(job, row);
    std::vector<double> p;
    for (std::int64_t j = first; j <= row; ++j) p.push_back(job.of.scale * dot(job.q, job.k, document, head, row, kv_head, j, size));
    const double top = *std::ranges::max_element(p);
    double sum = 0;
    for (double& x : p) sum += x = std::exp(x - top);
    for (std::int64_t c = 0; c < size; ++c) {
        double value = 0;
        for (std::int64_t j = first; j <= row; ++j)
            value += p[static_cast<std::size_t>(j - first)] * static_cast<double>(job.v.load(job.v.index(document, kv_head, j, c)));
        job.o.store(job.o.index(document, head, row, c), value / sum);
    }
    job.statistics.store(job.statistics.index(document, head, row, 0), top + std::log(sum));
}

void forward(const Job& job) {
    const std::int64_t heads = job.of.q->dim[1], group = heads / job.of.k->dim[1], size = job.of.q->dim[3];
    for (std::int64_t document = 0; document < job.of.q->dim[0]; ++document)
        for (std::int64_t head = 0; head < heads; ++head)
            for (std::int64_t row = 0; row < job.lengths[document]; ++row) forward_row(job, document, head, head / group, row, size);
}

/// Sums of one document, [heads, length, size] each, before they are rounded.
struct Gradients {
    std::vector<double> q, k, v;
};

void backward_row(const Job& job, Gradients& to, std::int64_t document, std::int64_t head, std::int64_t kv_head, std::int64_t row,
                  std::int64_t size) {
    const std::int64_t length = job.lengths[document];
    const double delta = dot(job.d_o, job.o, document, head, row, head, row, size);
    const double statistics = job.statistics.load(job.statistics.index(document, head, row, 0));
    const auto at = [&](std::int64_t h, std::int64_t r) { return static_cast<std::size_t>((h * length + r) * size); };
    for (std::int64_t j = first_seen(job, row); j <= row; ++j) {
        const double p = std::exp(job.of.scale * dot(job.q, job.k, document, head, row, kv_head, j, size) - statistics);
        const double ds = job.of.scale * p * (dot(job.d_o, job.v, document, head, row, kv_head, j, size) - delta);
        for (std::int64_t c = 0; c < size; ++c) {
            const auto column = static_cast<std::size_t>(c);
            to.q[at(head, row) + column] += ds * static_cast<double>(job.k.load(job.k.index(document, kv_head, j, c)));
            to.k[at(kv_head, j) + column] += ds * static_cast<double>(job.q.load(job.q.index(document, head, row, c)));
            to.v[at(kv_head, j) + column] += p * static_cast<double>(job.d_o.load(job.d_o.index(document, head, row, c)));
        }
    }
}

void store(const Place& to, const std::vector<double>& from, std::int64_t document, std::int64_t heads, std::int64_t length,
           std::int64_t size) {
    for (std::int64_t head = 0, i = 0; head < heads; ++head)
        for (std::int64_t row = 0; row < length; ++row)
            for (std::int64_t c = 0; c < size; ++c, ++i) to.store(to.index(document, head, row, c), from[static_cast<std::size_t>(i)]);
}

void backward(const Job& job) {
    const std::int64_t heads = job.of.q->dim[1], kv_heads = job.of.k->dim[1], size = job.of.q->dim[3];
    for (std::int64_t document = 0; document < job.of.q->dim[0]; ++document) {
        const std::int64_t length = job.lengths[document];
        const auto numbers = [&](std::int64_t h) { return std::vector<double>(static_cast<std::size_t>(h * length * size)); };
        Gradients to{numbers(heads), numbers(kv_heads), numbers(kv_heads)};
        for (std::int64_t head = 0; head < heads; ++head)
            for (std::int64_t row = 0; row < length; ++row) backward_row(job, to, document, head, head / (heads / kv_heads), row, size);
        store(job.d_q, to.q, document, heads, length, size);
        store(job.d_k, to.k, document, kv_heads, length, size);
        store(job.d_v, to.v, document, kv_heads, length, size);
    }
}

/// Lengths within the declared bounds, documents one after another; then the exact bytes of every tensor, in order with everything else.
void check_documents(const Job& job, const std::vector<std::pair<Tensor, Place>>& places) {
    std::int64_t rows = 0;
    for (std::int64_t d = 0; d < job.of.q->dim[0]; ++d) {
        if (job.lengths[d] < 0 || job.lengths[d] > job.of.q->dim[2])
            throw Fault("cuDNN: document " + std::to_string(d) + " has " + std::to_string(job.lengths[d]) + " rows in a graph of up to " +
                        std::to_string(job.of.q->dim[2]));
        rows += job.lengths[d];
    }
    if (job.of.bounded && rows > job.of.most_rows) throw Fault("cuDNN: more rows than set_max_total_seq_len says");
    for (const auto& [tensor, place] : places) {
        for (std::int64_t d = 0; d < job.of.q->dim[0]; ++d)
            if (place.offsets[d + 1] - place.offsets[d] < job.lengths[d] * place.stride[2])
                throw Fault("cuDNN: document " + std::to_string(d) + " of '" + tensor->name + "' reaches into the next one");
        const std::int64_t first = place.offsets[0], end = place.offsets[job.of.q->dim[0]];
        if (end > first)
            emu::check_found("cuDNN's attention", {place.data + static_cast<std::size_t>(first) * size_of(place.type),
                                                   static_cast<std::size_t>(end - first) * size_of(place.type), tensor->output});
    }
}

error_t not_supported(std::string why) {
    return {error_code_t::GRAPH_NOT_SUPPORTED, std::move(why)};
}

bool wrong_list(const Tensor& list, std::int64_t n, DataType_t type) {
    return list == nullptr || list->dim != std::vector<std::int64_t>{n, 1, 1, 1} || list->stride != std::vector<std::int64_t>{1, 1, 1, 1} ||
           list->type != type;
}

}  // namespace

Tensor Graph::tensor(Tensor_attributes const& attributes) {
    return inputs_.emplace_back(std::make_shared<Tensor_attributes>(attributes));
}

template <class Attributes>
void Graph::take(const Attributes& a) {
    attention_.emplace();
    attention_->scale = a.scale;
    attention_->padding = a.padding;
    attention_->query_lengths = a.query_lengths;
    attention_->key_lengths = a.key_lengths;
    attention_->window = a.left.value_or(0);
    if (a.left && *a.left <= 0) throw Fault("cuDNN: the left bound must be above 0");
    if (a.alignment != DiagonalAlignment_t::TOP_LEFT || a.right != 0) throw Fault("cuDNN: attention that is not causal");
}

std::array<Tensor, 2> Graph::sdpa(Tensor q, Tensor k, Tensor v, SDPA_attributes attributes) {
    take(attributes);
    Attention& a = *attention_;
    if (!attributes.statistics) throw Fault("cuDNN: attention without the statistics that gradients need");
    a.q = q, a.k = k, a.v = v;
    a.o = std::make_shared<Tensor_attributes>();
    a.statistics = std::make_shared<Tensor_attributes>();
    return {a.o, a.statistics};
}

std::array<Tensor, 3> Graph::sdpa_backward(Tensor q, Tensor k, Tensor v, Tensor o, Tensor d_o, Tensor stats,
                                           SDPA_backward_attributes attributes) {
    take(attributes);
    Attention& a = *attention_;
    if (!attributes.deterministic) throw Fault("cuDNN: gradients in an order that differs from run to run");
    a.q = q, a.k = k, a.v = v, a.o = o, a.d_o = d_o, a.statistics = stats;
    a.backward = a.deterministic = true;
    // a known fault of the library keeps the frontend from it where the size of heads is no multiple of 16
    a.bounded = attributes.most_query_rows && attributes.most_query_rows == attributes.most_key_rows && q->dim[3] % 16 == 0;
    a.most_rows = attributes.most_query_rows.value_or(0);
    for (Tensor* made : {&a.d_q, &a.d_k, &a.d_v}) *made = std::make_shared<Tensor_attributes>();
    return {a.d_q, a.d_k, a.d_v};
}

std::vector<Tensor> Graph::packed() const {
    const Attention& a = *attention_;
    std::vector<Tensor> all{a.q, a.k, a.v, a.o, a.statistics};
    if (a.backward) all.insert(all.end(), {a.d_o, a.d_q, a.d_k, a.d_v});
    return all;
}

std::vector<Tensor> Graph::lists() const {
    std::vector<Tensor> all{attention_->query_lengths};
    for (const Tensor& t : packed())
        if (std::ranges::find(all, t->offsets) == all.end()) all.push_back(t->offsets);
    return all;
}

void Graph::reach(int stage, const char* call) const {
    if (stage_ != stage) throw Fault(std::string("cudnn_frontend: ") + call + " out of order");
}

error_t Graph::validate() {
    EMU_FRONTEND_CALL();
    reach(0, __func__);
    stage_ = 1;
    if (!attention_) return {error_code_t::ATTRIBUTE_NOT_SET, "no attention"};
    Attention& a = *attention_;
    if (intermediate_type_ != DataType_t::FLOAT || compute_type_ != DataType_t::FLOAT)
        return {error_code_t::ATTRIBUTE_NOT_SET, "Intermediate tensor data type needs to be set as internal tensors require it."};
    if (!a.padding) return not_supported("Ragged offsets are only supported with padding mask.");
    const std::int64_t documents = a.q->dim[0], heads = a.q->dim[1], longest = a.q->dim[2], size = a.q->dim[3];
    if (wrong_list(a.query_lengths, documents, DataType_t::INT32) || a.key_lengths != a.query_lengths)
        return {error_code_t::ATTRIBUTE_NOT_SET, "Padding mask requires seq_len_q/seq_len_kv to be set."};
    for (const Tensor& t : packed()) {
        if (t->type == DataType_t::NOT_SET) t->type = t == a.statistics ? DataType_t::FLOAT : io_type_;
        if (t->dim.size() != 4 || t->stride.size() != 4 || t->stride[3] != 1 || t->dim[0] != documents || t->dim[2] != longest)
            return {error_code_t::ATTRIBUTE_NOT_SET, "The dim or stride for " + t->name + " is invalid"};
        if (wrong_list(t->offsets, documents + 1, DataType_t::INT64)) return not_supported("ragged offsets of " + t->name);
        const bool made = t == a.d_q || t == a.d_k || t == a.d_v || (!a.backward && (t == a.o || t == a.statistics));
        if (t->output != made) return {error_code_t::ATTRIBUTE_NOT_SET, t->name + " is not marked as what it is"};
        if (t != a.statistics && (t->dim[3] != size || t->stride[1] % 8 != 0 || t->stride[2] % 8 != 0))
            return not_supported(t->name + ": stride is not a multiple of the tensor's 16-byte alignment");
    }
    if (heads % a.k->dim[1] != 0) return not_supported("For group-query attention, number of heads ... must be a factor");
    if (a.statistics->type != DataType_t::FLOAT || a.statistics->dim[1] != heads || a.statistics->dim[3] != 1)
        return not_supported("The Stats output of sdpa must be an FP32 tensor.");
    std::vector<std::int64_t> uids;
    for (const auto& group : {packed(), lists()})
        for (const Tensor& t : group) uids.push_back(t->uid);
    std::ranges::sort(uids);
    if (std::ranges::adjacent_find(uids) != uids.end()) return {error_code_t::ATTRIBUTE_NOT_SET, "two tensors have one uid"};
    const int major = emu::device_options.capability / 10;
    if (major < 8) return not_supported("SDPA FP16/BF16 requires SM80 (Ampere) or newer architecture");
    if (size % 8 != 0) return not_supported("hidden_dim should be multiple of 8");
    if (!a.backward) return {};
    if (major == 8 || major == 12) return not_supported("Deterministic algorithm is not supported for bprop thd on SM8X and SM12X GPUs");
    if (size > (major == 9 ? 256 : 128)) return not_supported("Num hidden_dim should be less than or equal to 128");
    return {};
}

error_t Graph::build_operation_graph(cudnnHandle_t handle) {
    EMU_FRONTEND_CALL();
    reach(1, __func__);
    if (handle == nullptr || handle->device != emu::current_device()) throw Fault("cuDNN: the handle is not of the current device");
    stage_ = 2;
    return {};
}
error_t Graph::create_execution_plans(std::vector<HeurMode_t> const& mode) {
    EMU_FRONTEND_CALL();
    reach(2, __func__);
    if (mode != std::vector{HeurMode_t::A}) throw Fault("cuDNN: plans by other means than the first heuristic");
    stage_ = 3;
    return {};
}
error_t Graph::check_support() {
    EMU_FRONTEND_CALL();
    reach(3, __func__);
    stage_ = 4;
    return {};
}
error_t Graph::build_plans() {
    EMU_FRONTEND_CALL();
    reach(4, __func__);
    stage_ = 5;
    return {};
}

/// As cuDNN 9.19 says: on Hopper a matrix of 16-bit numbers for each document and head, whose sides are rounded up to 64 and 128;
/// everywhere gradients of keys and values by query head where heads share keys, and a number for each row and head.
std::int64_t Graph::workspace() const {
    const Attention& a = *attention_;
    const std::int64_t documents = a.q->dim[0], heads = a.q->dim[1], longest = a.q->dim[2], size = a.q->dim[3];
    if (!a.backward) return 16 << 10;
    const std::int64_t rows = a.bounded ? a.most_rows : documents * longest;
    const std::int64_t matrix = (longest + 63) / 64 * 64 * ((longest + 127) / 128 * 128) * 2;
    return (emu::device_options.capability < 100 ? documents * heads * matrix : 0) +
           (heads != a.k->dim[1] ? 2 * rows * heads * size * (a.bounded ? 4 : 2) : 0) + rows * heads * 4 + 1024;
}

error_t Graph::get_workspace_size(std::int64_t& bytes) const {
    EMU_FRONTEND_CALL();
    reach(5, __func__);
    bytes = workspace();
    return {};
}

error_t Graph::execute(cudnnHandle_t handle, std::unordered_map<std::int64_t, void*>& pointers, void* scratch) const {
    EMU_FRONTEND_CALL();
    reach(5, __func__);
    std::vector<emu::Range> ranges{{scratch, static_cast<std::size_t>(workspace()), true}};
    for (const Tensor& list : lists()) {
        if (!pointers.contains(list->uid)) return {error_code_t::INVALID_VARIANT_PACK, "Uid " + std::to_string(list->uid) + " not found"};
        ranges.push_back({pointers[list->uid], static_cast<std::size_t>(list->dim[0]) * size_of(list->type), false});
    }
    std::vector<std::pair<Tensor, Place>> places;
    for (const Tensor& t : packed()) {
        if (!pointers.contains(t->uid)) return {error_code_t::INVALID_VARIANT_PACK, "Uid " + std::to_string(t->uid) + " not found"};
        auto* const data = static_cast<unsigned char*>(pointers[t->uid]);
        if (reinterpret_cast<std::uintptr_t>(data) % 16 != 0) throw Fault("cuDNN: '" + t->name + "' is not aligned to 16 bytes");
        places.push_back({t, {data, t->type, t->stride, static_cast<const std::int64_t*>(pointers[t->offsets->uid])}});
        ranges.push_back({data, 0, t->output});
    }
    Job job{.of = *attention_,
            .q = places[0].second,
            .k = places[1].second,
            .v = places[2].second,
            .o = places[3].second,
            .statistics = places[4].second,
            .d_o = {},
            .d_q = {},
            .d_k = {},
            .d_v = {},
            .lengths = nullptr};
    if (job.of.backward) job.d_o = places[5].second, job.d_q = places[6].second, job.d_k = places[7].second, job.d_v = places[8].second;
    job.lengths = static_cast<const std::int32_t*>(pointers[attention_->query_lengths->uid]);
    emu::enqueue(handle->stream, "cuDNN's attention", ranges, [job, places, scratch, bytes = workspace()] {
        check_documents(job, places);
        std::memset(scratch, 0xff, static_cast<std::size_t>(bytes));
        job.of.backward ? backward(job) : forward(job);
        return true;
    });
    return {};
}

}  // namespace cudnn_frontend::graph
