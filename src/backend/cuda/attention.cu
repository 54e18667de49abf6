#include "attention.hpp"
#include "device.cuh"
#include "dispatch.hpp"

#include <algorithm>

namespace sherd::cuda {

namespace {

constexpr int threads = 256;

/// delta[h, t] = dout . out of row t and head h, which is the sum over keys of probabilities times their gradients (Dao 2022). `lanes`
/// threads, a power of two, share a product. Bytes: 2 sizeof(T) an element, 4 a product. FLOPs: 2 an element.
template <class T, int chunk>
__global__ void __launch_bounds__(threads)
    attention_delta_kernel(float* delta, const T* dout, const T* out, std::int64_t rows, int heads, int head_dim, int lanes) {
    const std::int64_t product = std::int64_t{blockIdx.x} * (threads / lanes) + static_cast<int>(threadIdx.x) / lanes;
    const int lane = static_cast<int>(threadIdx.x) % lanes;
    const bool live = product < rows * heads;
    float sum = 0;
    if (live) {
        const std::int64_t head = product / rows, at = ((product - head * rows) * heads + head) * head_dim;
        for (int c = lane * chunk; c < head_dim; c += lanes * chunk) {
            float a[chunk], b[chunk];
            load(a, dout + at + c);
            load(b, out + at + c);
#pragma unroll
            for (int j = 0; j < chunk; ++j) sum += a[j] * b[j];
        }
    }
    sum = lane_sum(sum, lanes);
    if (live && lane == 0) delta[product] = sum;
}

template <class T, int chunk>
void compute_delta(cudaStream_t stream, float* delta, const T* dout, const T* out, const AttentionSizes& s) {
    int lanes = 1;
    while (lanes < 32 && lanes * chunk < s.head_dim) lanes *= 2;
    const std::int64_t products = std::int64_t{s.rows} * s.heads;
    launch<attention_delta_kernel<T, chunk>>(
        {.grid = dim3(blocks_for(products, threads / lanes)), .block = dim3(threads), .stream = stream}, delta, dout, out,
        std::int64_t{s.rows}, s.heads, s.head_dim, lanes);
}

/// What kernels are told of the shape, where the addresses of T are those given.
template <class T, class... Addresses>
AttentionSizes sizes_of(Tensor q, const Documents& documents, const AttentionShape& shape, const Addresses*... addresses) {
    check_attention(q.rows, shape);
    const bool wide = shape.head_dim % vector_of<T> == 0 && aligned_to(16, addresses...);
    const std::int64_t window = shape.window > 0 && shape.window < q.rows ? shape.window : q.rows;
    return {static_cast<int>(q.rows),
            static_cast<int>(documents.count),
            static_cast<int>(shape.heads),
            static_cast<int>(shape.kv_heads),
            static_cast<int>(shape.head_dim),
            static_cast<int>(window),
            shape.scale,
            wide};
}

/// Whether tensor cores multiply T on a device; tensor_core.cuh says why.
template <class T>
bool has_products(const DeviceLimits& limits) {
    return limits.capability >= 80 || (limits.capability >= 75 && std::is_same_v<T, __half>);
}

}  // namespace

void attention_forward(cudaStream_t stream, const DeviceLimits& limits, Tensor out, float* lse, Tensor q, Tensor k, Tensor v,
                       const Documents& documents, const AttentionShape& shape) {
    if (q.elements() == 0) return;
    with_type(q.dtype, "attention_forward", [&]<class T>() {
        const ForwardOperands<T> o{out.as<T>(), lse, q.as<const T>(), k.as<const T>(), v.as<const T>(), documents.offsets};
        const AttentionSizes sizes = sizes_of<T>(q, documents, shape, o.out, o.q, o.k, o.v);
        if constexpr (sizeof(T) == 2) {
            if (sizes.wide && has_products<T>(limits) && tensor_attention_forward(stream, limits, o, sizes)) return;
        }
        simple_attention_forward(stream, o, sizes);
    });
}

void attention_backward(cudaStream_t stream, const DeviceLimits& limits, Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out,
                        const float* lse, Tensor q, Tensor k, Tensor v, const Documents& documents, const AttentionShape& shape,
                        float* scratch) {
    if (q.elements() == 0) return;
    with_type(q.dtype, "attention_backward", [&]<class T>() {
        const BackwardOperands<T> o{dq.as<T>(),      dk.as<T>(), dv.as<T>(), dout.as<const T>(), q.as<const T>(), k.as<const T>(),
                                    v.as<const T>(), lse,        scratch,    documents.offsets};
        const AttentionSizes sizes = sizes_of<T>(q, documents, shape, o.dq, o.dk, o.dv, o.dout, o.q, o.k, o.v, out.as<T>());
        if (sizes.wide) {
            compute_delta<T, vector_of<T>>(stream, scratch, o.dout, out.as<const T>(), sizes);
        } else {
            compute_delta<T, 1>(stream, scratch, o.dout, out.as<const T>(), sizes);
        }
        bool keys = false, queries = false;
        if constexpr (sizeof(T) == 2) {
            if (sizes.wide && has_products<T>(limits)) {
                keys = tensor_attention_keys(stream, limits, o, sizes);
                queries = tensor_attention_queries(stream, limits, o, sizes);
            }
        }
        if (!keys) simple_attention_keys(stream, o, sizes);
        if (!queries) simple_attention_queries(stream, o, sizes);
    });
}

void attention_forward(cudaStream_t stream, Tensor out, float* lse, Tensor q, Tensor k, Tensor v, const Documents& documents,
                       const AttentionShape& shape) {
    attention_forward(stream, device_limits(), out, lse, q, k, v, documents, shape);
}

void attention_backward(cudaStream_t stream, Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, const float* lse, Tensor q, Tensor k,
                        Tensor v, const Documents& documents, const AttentionShape& shape, float* scratch) {
    attention_backward(stream, device_limits(), dq, dk, dv, dout, out, lse, q, k, v, documents, shape, scratch);
}

std::int64_t attention_scratch(std::int64_t rows, const AttentionShape& shape) {
    return rows * shape.heads;
}

}  // namespace sherd::cuda
