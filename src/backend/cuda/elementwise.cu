#include "check.hpp"
#include "dispatch.hpp"
#include "elementwise.cuh"
#include "kernels.hpp"

namespace sherd::cuda {

namespace {

/// Bytes: size of both types an element. No FLOPs.
template <class To, class From>
__global__ void __launch_bounds__(elementwise_threads) cast_kernel(To* to, const From* from, std::int64_t n, bool aligned) {
    over_elements<chunk_of<To, From>>(n, aligned, [&]<int N>(std::int64_t i) {
        float v[N];
        load(v, from + i);
        store(to + i, v);
    });
}

/// Bytes: sizeof(X) + sizeof(T) an element, sizeof(X) + 2 sizeof(T) with accumulate. FLOPs: 1.
template <class T, class X>
__global__ void __launch_bounds__(elementwise_threads) add_kernel(T* y, const X* x, std::int64_t n, bool accumulate, bool aligned) {
    over_elements<chunk_of<T, X>>(n, aligned, [&]<int N>(std::int64_t i) {
        float sum[N] = {}, added[N];
        if (accumulate) load(sum, y + i);
        load(added, x + i);
#pragma unroll
        for (int j = 0; j < N; ++j) sum[j] += added[j];
        store(y + i, sum);
    });
}

/// Bytes: 3 sizeof(T) an element. FLOPs: 5, two of them an exponential and a division of the special function unit: at 2 bytes an element
/// exact ones would take longer than the memory.
template <class T>
__global__ void __launch_bounds__(elementwise_threads)
    swiglu_forward_kernel(T* out, const T* gate, const T* up, std::int64_t n, bool aligned) {
    over_elements<chunk_of<T>>(n, aligned, [&]<int N>(std::int64_t i) {
        float g[N], u[N];
        load(g, gate + i);
        load(u, up + i);
#pragma unroll
        for (int j = 0; j < N; ++j) u[j] *= g[j] * fast_sigmoid(g[j]);
        store(out + i, u);
    });
}

/// Bytes: 6 sizeof(T) an element. FLOPs: 12, two of them of the special function unit.
template <class T>
__global__ void __launch_bounds__(elementwise_threads) swiglu_backward_kernel(T* gate, T* up, T* dout, std::int64_t n, bool aligned) {
    over_elements<chunk_of<T>>(n, aligned, [&]<int N>(std::int64_t i) {
        float g[N], u[N], d[N];
        load(g, gate + i);
        load(u, up + i);
        load(d, dout + i);
#pragma unroll
        for (int j = 0; j < N; ++j) {
            const float sigmoid = fast_sigmoid(g[j]), silu = g[j] * sigmoid, factor = u[j], gradient = d[j];
            g[j] = gradient * factor * (sigmoid + silu * (1.0f - sigmoid));
            u[j] = gradient * silu;
            d[j] = silu * factor;
        }
        store(gate + i, g);
        store(up + i, u);
        store(dout + i, d);
    });
}

constexpr int rope_heads = 4;  ///< of a thread, which loads their common angles once

/// A thread turns `chunk` pairs of elements (i, i + half) in up to rope_heads heads of a row, all of which are on their way from memory
/// before the first is turned; `work` neighbouring threads share a row.
/// Bytes: 2 sizeof(T) an element; the angles of a row, 4 head_dim bytes, come from the cache for all but its first heads. FLOPs: 3.
template <class T, int chunk>
__global__ void __launch_bounds__(elementwise_threads)
    rope_kernel(T* x, const float* cosine, const float* sine, const std::int32_t* positions, std::int64_t rows, int heads, int half,
                int work, float sign) {
    const std::int64_t thread = std::int64_t{blockIdx.x} * elementwise_threads + threadIdx.x, row = thread / work;
    if (row >= rows) return;
    const int w = static_cast<int>(thread - row * work), chunks = half / chunk, i = w % chunks * chunk, first = w / chunks * rope_heads;
    T* const low = x + (row * heads + first) * 2 * half + i;
    float a[rope_heads][chunk], b[rope_heads][chunk], c[chunk], s[chunk];
#pragma unroll
    for (int h = 0; h < rope_heads; ++h) {
        if (first + h >= heads) break;
        load(a[h], low + h * 2 * half);
        load(b[h], low + h * 2 * half + half);
    }
    const std::int64_t angle = std::int64_t{positions[row]} * half + i;
    load(c, cosine + angle);
    load(s, sine + angle);
#pragma unroll
    for (int h = 0; h < rope_heads; ++h) {
        if (first + h >= heads) break;
#pragma unroll
        for (int j = 0; j < chunk; ++j) {
            const float turned = a[h][j] * c[j] - b[h][j] * (sign * s[j]);
            b[h][j] = b[h][j] * c[j] + a[h][j] * (sign * s[j]);
            a[h][j] = turned;
        }
        store(low + h * 2 * half, a[h]);
        store(low + h * 2 * half + half, b[h]);
    }
}

template <class To, class From>
bool whole_chunks(const To* to, const From* from) {
    constexpr int chunk = chunk_of<To, From>;
    return aligned_to(chunk * sizeof(To), to) && aligned_to(chunk * sizeof(From), from);
}

}  // namespace

void cast(cudaStream_t stream, Tensor to, Tensor from) {
    if (from.elements() == 0) return;
    if (to.dtype == from.dtype) {
        if (to.data != from.data) SHERD_CUDA(cudaMemcpyAsync(to.data, from.data, to.bytes(), cudaMemcpyDeviceToDevice, stream));
        return;
    }
    with_type(to.dtype, "cast", [&]<class To>() {
        with_type(from.dtype, "cast", [&]<class From>() {
            if constexpr (!std::is_same_v<To, From>)
                launch<cast_kernel<To, From>>(elementwise_shape(stream, from.elements(), chunk_of<To, From>), to.as<To>(),
                                              from.as<const From>(), from.elements(), whole_chunks(to.as<To>(), from.as<const From>()));
        });
    });
}

void add(cudaStream_t stream, Tensor y, Tensor x, bool accumulate) {
    const std::int64_t n = y.elements();
    if (n == 0) return;
    with_type(y.dtype, "add", [&]<class T>() {
        with_type(x.dtype, "add", [&]<class X>() {
            launch<add_kernel<T, X>>(elementwise_shape(stream, n, chunk_of<T, X>), y.as<T>(), x.as<const X>(), n, accumulate,
                                     whole_chunks(y.as<T>(), x.as<const X>()));
        });
    });
}

void swiglu_forward(cudaStream_t stream, Tensor out, Tensor gate, Tensor up) {
    const std::int64_t n = out.elements();
    if (n == 0) return;
    with_type(out.dtype, "swiglu_forward", [&]<class T>() {
        launch<swiglu_forward_kernel<T>>(elementwise_shape(stream, n, chunk_of<T>), out.as<T>(), gate.as<const T>(), up.as<const T>(), n,
                                         aligned_to(16, out.as<T>(), gate.as<T>(), up.as<T>()));
    });
}

void swiglu_backward(cudaStream_t stream, Tensor gate, Tensor up, Tensor dout) {
    const std::int64_t n = gate.elements();
    if (n == 0) return;
    with_type(gate.dtype, "swiglu_backward", [&]<class T>() {
        launch<swiglu_backward_kernel<T>>(elementwise_shape(stream, n, chunk_of<T>), gate.as<T>(), up.as<T>(), dout.as<T>(), n,
                                          aligned_to(16, gate.as<T>(), up.as<T>(), dout.as<T>()));
    });
}

void rope(cudaStream_t stream, Tensor x, std::int64_t heads, const float* cosine, const float* sine, const std::int32_t* positions,
          bool inverse) {
    if (x.elements() == 0) return;
    const int half = static_cast<int>(x.columns / heads / 2);
    with_type(x.dtype, "rope", [&]<class T>() {
        const auto turn = [&]<int chunk>() {
            const std::int64_t work = (heads + rope_heads - 1) / rope_heads * (half / chunk);
            launch<rope_kernel<T, chunk>>(elementwise_shape(stream, x.rows * work, 1), x.as<T>(), cosine, sine, positions, x.rows,
                                          static_cast<int>(heads), half, static_cast<int>(work), inverse ? -1.0f : 1.0f);
        };
        if (half % vector_of<T> == 0 && aligned_to(16, x.as<T>(), cosine, sine)) return turn.template operator()<vector_of<T>>();
        turn.template operator()<1>();
    });
}

}  // namespace sherd::cuda
