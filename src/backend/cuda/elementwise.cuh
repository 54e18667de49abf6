#pragma once
/// One thread for every few neighbouring elements, moved 16 bytes at a time where addresses allow.
#include "device.cuh"

#include <algorithm>

namespace sherd::cuda {

inline constexpr int elementwise_threads = 256;

/// Elements of a thread: 16 bytes of the widest of the types.
template <class... T>
inline constexpr int chunk_of = 16 / static_cast<int>(std::max({sizeof(T)...}));

/// Calls body.operator()<N>(i) for elements [i, i + N): N is chunk for whole chunks where `aligned`, else 1.
template <int chunk, class Body>
__device__ void over_elements(std::int64_t n, bool aligned, const Body& body) {
    const std::int64_t first = (std::int64_t{blockIdx.x} * elementwise_threads + threadIdx.x) * chunk;
    if (aligned && first + chunk <= n) {
        body.template operator()<chunk>(first);
    } else {
        for (std::int64_t i = first; i < first + chunk && i < n; ++i) body.template operator()<1>(i);
    }
}

inline LaunchShape elementwise_shape(cudaStream_t stream, std::int64_t n, int chunk, const char* file = __builtin_FILE(),
                                     int line = __builtin_LINE()) {
    return {.grid = dim3(blocks_for(n, std::int64_t{elementwise_threads} * chunk)),
            .block = dim3(elementwise_threads),
            .stream = stream,
            .file = file,
            .line = line};
}

}  // namespace sherd::cuda
