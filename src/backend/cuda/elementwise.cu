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

/// Bytes: 4 + 2 sizeof(T) an element. FLOPs: 1.
template <class T>
__global__ void __launch_bounds__(elementwise_threads) add_kernel(T* y, const float* x, std::int64_t n, bool aligned) {
    over_elements<chunk_of<T, float>>(n, aligned, [&]<int N>(std::int64_t i) {
        float sum[N], added[N];
        load(sum, y + i);
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

/// A block a row, a thread `chunk` pairs of elements (i, i + half) in up to rope_heads heads.
/// Bytes: 2 sizeof(T) an element; the angles of a row, 4 head_dim bytes, come from the cache for all but its first heads. FLOPs: 3.
template <class T, int chunk>
__global__ void rope_kernel(T* x, const float* cosine, const float* sine, const std::int32_t* positions, int heads, int half, float sign) {
    T* const row = x + std::int64_t{blockIdx.x} * heads * 2 * half;
    const std::int64_t angle = std::int64_t{positions[blockIdx.x]} * half;
    const int chunks = half / chunk, work = (heads + rope_heads - 1) / rope_heads * chunks;
    for (int w = static_cast<int>(threadIdx.x); w < work; w += static_cast<int>(blockDim.x)) {
        const int i = w % chunks * chunk, first = w / chunks * rope_heads;
        float c[chunk], s[chunk];
        load(c, cosine + angle + i);
        load(s, sine + angle + i);
#pragma unroll
        for (int h = 0; h < rope_heads; ++h) {
            if (first + h >= heads) break;
            T* const low = row + std::int64_t{first + h} * 2 * half + i;
            float a[chunk], b[chunk];
            load(a, low);
            load(b, low + half);
#pragma unroll
            for (int j = 0; j < chunk; ++j) {
                const float turned = a[j] * c[j] - b[j] * (sign * s[j]);
                b[j] = b[j] * c[j] + a[j] * (sign * s[j]);
                a[j] = turned;
            }
            store(low, a);
            store(low + half, b);
        }
    }
}

template <class To, class From>
void cast_elements(cudaStream_t stream, To* to, const From* from, std::int64_t n) {
    constexpr int chunk = chunk_of<To, From>;
    launch<cast_kernel<To, From>>(elementwise_shape(stream, n, chunk), to, from, n,
                                  aligned_to(chunk * sizeof(To), to) && aligned_to(chunk * sizeof(From), from));
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
            if constexpr (!std::is_same_v<To, From>) cast_elements(stream, to.as<To>(), from.as<const From>(), from.elements());
        });
    });
}

void add(cudaStream_t stream, Tensor y, const float* x) {
    const std::int64_t n = y.elements();
    if (n == 0) return;
    with_type(y.dtype, "add", [&]<class T>() {
        constexpr int chunk = chunk_of<T, float>;
        launch<add_kernel<T>>(elementwise_shape(stream, n, chunk), y.as<T>(), x, n,
                              aligned_to(chunk * sizeof(T), y.as<T>()) && aligned_to(16, x));
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
        constexpr int chunk = vector_of<T>;
        const bool vectors = half % chunk == 0 && aligned_to(16, x.as<T>(), cosine, sine);
        const std::int64_t work = (heads + rope_heads - 1) / rope_heads * (vectors ? half / chunk : half);
        const auto threads = static_cast<unsigned>(std::min<std::int64_t>(256, (work + 31) / 32 * 32));
        const LaunchShape shape{.grid = dim3(blocks_for(x.rows, 1)), .block = dim3(threads), .stream = stream};
        const float sign = inverse ? -1.0f : 1.0f;
        if (vectors) {
            launch<rope_kernel<T, chunk>>(shape, x.as<T>(), cosine, sine, positions, static_cast<int>(heads), half, sign);
        } else {
            launch<rope_kernel<T, 1>>(shape, x.as<T>(), cosine, sine, positions, static_cast<int>(heads), half, sign);
        }
    });
}

}  // namespace sherd::cuda
