// One seeded fault a kernel. `sound` repairs it, so that the checker is also shown to keep quiet.
#include "backend/cuda/device.cuh"
#include "faulty_kernels.hpp"
#include "harness/wmma.hpp"

namespace faulty {
namespace {

using sherd::cuda::dynamic_shared;
using sherd::cuda::full_warp;

__global__ void exits_before_barrier(float* out, bool sound) {
    if (!sound && threadIdx.x >= 40) return;
    __syncthreads();
    out[threadIdx.x] = 1.0F;
}

__global__ void skips_barrier(float* out, bool sound) {
    if (sound || threadIdx.x % 2 == 0) __syncthreads();
    out[threadIdx.x] = 1.0F;
}

__global__ void two_barriers(float* out, bool sound) {
    if (sound || threadIdx.x < 32) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    out[threadIdx.x] = 1.0F;
}

__global__ void shared_race(float* out, bool sound) {
    __shared__ float s[64];
    s[threadIdx.x] = static_cast<float>(threadIdx.x);
    if (sound) __syncthreads();
    out[threadIdx.x] = s[63 - threadIdx.x];
}

__global__ void warp_race(float* out, bool sound) {
    __shared__ float s[64];
    s[threadIdx.x] = static_cast<float>(threadIdx.x);
    if (sound)
        __syncwarp();
    else
        __shfl_sync(full_warp, 1, 0);  // a shuffle does not order memory
    out[threadIdx.x] = s[threadIdx.x ^ 1U];
}

__global__ void missing_second_barrier(float* out, bool sound) {
    __shared__ float s;
    for (int i = 0; i < 2; ++i) {
        if (threadIdx.x == 0) s = static_cast<float>(i);
        __syncthreads();
        out[threadIdx.x] = s;
        if (sound) __syncthreads();
    }
}

__global__ void global_race(float* out, bool sound) {
    out[sound ? blockIdx.x * 64 + threadIdx.x : threadIdx.x] = 1.0F;
}

__global__ void counts(float* out, bool sound) {
    int* counter = reinterpret_cast<int*>(out);
    if (sound)
        atomicAdd(counter, 1);
    else
        *counter += 1;
}

__global__ void uninitialized(float* out, bool sound) {
    __shared__ float s[64];
    if (sound || threadIdx.x != 7) s[threadIdx.x] = 0.0F;
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x];
}

__global__ void static_overrun(float* out, bool sound) {
    __shared__ float s[64];
    s[threadIdx.x + (sound ? 0 : 1)] = 0.0F;
    __syncthreads();
    if (threadIdx.x > 0) out[threadIdx.x] = s[threadIdx.x];
}

__global__ void static_overrun_by_pointer(float* out, bool sound) {
    __shared__ float s[64];
    float* p = s;
    asm volatile("" : "+r"(p));  // hide the array from the compiler, as a call would
    p[threadIdx.x + (sound ? 0 : 1)] = 0.0F;
    __syncthreads();
    out[threadIdx.x] = 0.0F;
}

__global__ void dynamic_overrun(float* out, bool sound) {
    float* s = dynamic_shared<float>();
    s[threadIdx.x + (sound ? 0 : 1)] = 0.0F;
    __syncthreads();
    out[threadIdx.x] = 0.0F;
}

__global__ void global_overrun(float* out, bool sound) {
    out[threadIdx.x + (sound ? 0 : 100)] = 1.0F;
}

__global__ void inactive_lane(float* out, bool sound) {
    if (threadIdx.x % 32 < 16) {
        const float v = __shfl_down_sync(0x0000ffffU, 1.0F, 8, sound ? 16 : 32);  // lanes 8.. read 16.., which take no part
        out[threadIdx.x] = v;
    }
}

__global__ void lane_not_in_mask(float* out, bool sound) {
    out[threadIdx.x] = __shfl_xor_sync(sound ? full_warp : 0x0000ffffU, 1.0F, 1);
}

__global__ void absent_lane(float* out, bool sound) {
    unsigned v = 0;
    if (sound || threadIdx.x != 5) v = __ballot_sync(full_warp, 1);
    __syncthreads();
    out[threadIdx.x] = static_cast<float>(v);
}

__global__ void misaligned(float* out, bool sound) {
    *reinterpret_cast<float4*>(out + 4 * threadIdx.x + (sound ? 0 : 1)) = make_float4(1, 2, 3, 4);
}

__global__ void layout_assumed(float* out, bool sound) {
    namespace wmma = nvcuda::wmma;
    alignas(32) __shared__ float tile[256];
    for (unsigned i = threadIdx.x; i < 256; i += 64) tile[i] = static_cast<float>(i);
    __syncthreads();
    if (threadIdx.x < 32) {
        wmma::fragment<wmma::accumulator, 16, 16, 16, float> f;
        wmma::load_matrix_sync(f, tile + (sound ? 0 : 4), 16, wmma::mem_row_major);  // 16 B off a 32 B boundary
        out[threadIdx.x] = f.x[0];
    }
}

__global__ void copy_not_awaited(float* out, bool sound) {
    __shared__ __align__(16) float s[256];
    __pipeline_memcpy_async(s + 4 * threadIdx.x, out + 4 * threadIdx.x, 16);
    __pipeline_commit();
    __pipeline_wait_prior(sound ? 0 : 1);
    __syncthreads();
    out[256 + threadIdx.x] = s[255 - threadIdx.x];
}

}  // namespace

void run(const std::string& which, float* out, bool sound) {
    const sherd::cuda::LaunchShape one{.block = dim3(64), .shared_bytes = 64 * sizeof(float)};
    const sherd::cuda::LaunchShape two{.grid = dim3(2), .block = dim3(64)};
#define RUN(kernel, shape) \
    if (which == #kernel) return sherd::cuda::launch<kernel>(shape, out, sound);
    RUN(exits_before_barrier, one)
    RUN(skips_barrier, one)
    RUN(two_barriers, one)
    RUN(shared_race, one)
    RUN(warp_race, one)
    RUN(missing_second_barrier, one)
    RUN(global_race, two)
    RUN(counts, two)
    RUN(uninitialized, one)
    RUN(static_overrun, one)
    RUN(static_overrun_by_pointer, one)
    RUN(dynamic_overrun, one)
    RUN(global_overrun, one)
    RUN(inactive_lane, one)
    RUN(lane_not_in_mask, one)
    RUN(absent_lane, one)
    RUN(misaligned, one)
    RUN(layout_assumed, one)
    RUN(copy_not_awaited, one)
#undef RUN
    throw std::logic_error("no kernel " + which);
}

}  // namespace faulty
