// The emulation itself against closed forms: warp operations, votes, atomics, 16-bit formats, tensor core tiles.
#include "backend/cuda/device.cuh"
#include "backend/cuda/tensor_core.cuh"
#include "support.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace {

constexpr int kThreads = 80;  // two and a half warps

__global__ void warp_kernel(int* out) {
    const int t = static_cast<int>(threadIdx.x), lane = t % 32;
    const unsigned mask = t < 64 ? 0xffffffffU : 0x0000ffffU;
    int* o = out + t * 12;
    o[0] = __shfl_sync(mask, t, 3);
    o[1] = __shfl_sync(mask, t, 9, 8);  // lane 1 of each group of 8
    o[2] = __shfl_xor_sync(mask, t, 5);
    o[3] = __shfl_up_sync(mask, t, 1, 16);
    o[4] = __shfl_down_sync(mask, t, 2, 8);
    o[5] = static_cast<int>(__ballot_sync(mask, lane % 3 == 0));
    o[6] = __any_sync(mask, lane == 7) + 2 * __all_sync(mask, lane < 31);
    o[7] = static_cast<int>(__reduce_add_sync(mask, static_cast<unsigned>(lane)));
    o[8] = static_cast<int>(__reduce_max_sync(mask, static_cast<unsigned>(t)));
    o[9] = static_cast<int>(__reduce_min_sync(mask, static_cast<unsigned>(t)));
    if (lane < 8)
        o[10] = __shfl_xor_sync(0xffU, t, 1);
    else
        o[10] = __shfl_xor_sync(mask & ~0xffU, t, 2);  // two groups at once
    o[11] = __syncthreads_count(t % 5 == 0);
}

TEST(Warp, OperationsMatchTheirDefinition) {
    for (const unsigned seed : {0U, 1U, 2U}) {
        emu::options.seed = seed;
        Buffer<int> out(kThreads * 12);
        sherd::cuda::launch<warp_kernel>({.block = dim3(kThreads)}, out.get());
        const auto v = out.host();
        for (int t = 0; t < kThreads; ++t) {
            const int* o = v.data() + t * 12;
            const int lane = t % 32, base = t - lane, lanes = std::min(32, kThreads - base);
            EXPECT_EQ(o[0], base + 3);
            EXPECT_EQ(o[1], t - t % 8 + 1);
            EXPECT_EQ(o[2], base + (lane ^ 5));
            EXPECT_EQ(o[3], t % 16 == 0 ? t : t - 1);
            EXPECT_EQ(o[4], t % 8 < 6 ? t + 2 : t);
            unsigned votes = 0;
            for (int l = 0; l < lanes; l += 3) votes |= 1U << l;
            EXPECT_EQ(static_cast<unsigned>(o[5]), votes);
            EXPECT_EQ(o[6], lanes == 32 ? 1 : 3);
            EXPECT_EQ(o[7], lanes * (lanes - 1) / 2);
            EXPECT_EQ(o[8], base + lanes - 1);
            EXPECT_EQ(o[9], base);
            EXPECT_EQ(o[10], base + (lane < 8 ? lane ^ 1 : lane ^ 2));
            EXPECT_EQ(o[11], 16);
        }
    }
    emu::options.seed = 0;
}

__global__ void atomic_kernel(int* counter, int* sum, unsigned* largest, unsigned* bits, float* total, bool plain_read) {
    int seen = plain_read ? *static_cast<volatile int*>(counter) : atomicAdd(counter, 0);
    for (int was; (was = atomicCAS(counter, seen, seen + 1)) != seen; seen = was) {
    }
    atomicAdd(sum, static_cast<int>(threadIdx.x));
    atomicMax(largest, blockIdx.x * 100 + threadIdx.x);
    atomicOr(bits, 1U << (threadIdx.x % 32));
    atomicAdd(total, 0.5F);
}

TEST(Atomics, AddUpOverBlocksAndOrders) {
    for (const unsigned seed : {0U, 1U, 2U}) {
        emu::options.seed = seed;
        Buffer<int> counter(std::vector<int>{0}), sum(std::vector<int>{0});
        Buffer<unsigned> largest(std::vector<unsigned>{0}), bits(std::vector<unsigned>{0});
        Buffer<float> total(std::vector<float>{0});
        const auto run = [&](bool plain_read) {
            sherd::cuda::launch<atomic_kernel>({.grid = dim3(3), .block = dim3(kThreads)}, counter.get(), sum.get(), largest.get(),
                                               bits.get(), total.get(), plain_read);
        };
        run(false);
        EXPECT_EQ(counter.host()[0], 3 * kThreads);
        EXPECT_EQ(sum.host()[0], 3 * kThreads * (kThreads - 1) / 2);
        EXPECT_EQ(largest.host()[0], 200 + kThreads - 1);
        EXPECT_EQ(bits.host()[0], 0xffffffffU);
        EXPECT_EQ(total.host()[0], 1.5F * kThreads);
        if (emu::observer != nullptr) {
            EXPECT_THROW(run(true), emu::Fault) << "a plain read beside atomics is a race";
        }
    }
    emu::options.seed = 0;
}

/// The nearest of all finite values, ties to the even one: the definition, not an algorithm.
template <class T, class Bits>
void check_rounding(float x) {
    const float y = as_float(rounded<T>(x));
    const T r = rounded<T>(x);
    Bits bits;
    std::memcpy(&bits, &r, 2);
    for (const int step : {-1, 1}) {
        const Bits other_bits = static_cast<Bits>(bits + step);
        T other;
        std::memcpy(static_cast<void*>(&other), &other_bits, 2);
        const double mine = std::abs(double{y} - x), its = std::abs(double{as_float(other)} - x);
        ASSERT_TRUE(mine < its || (mine == its && bits % 2 == 0) || std::isnan(its)) << x;
    }
}

TEST(Formats, HostConversionsRoundToNearestEven) {
    for (std::uint32_t i = 1; i < 0x7f00; ++i) {  // around every positive bfloat16, its midpoint included
        for (const std::uint32_t low : {0U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
            const float x = std::bit_cast<float>(i << 16 | low);
            check_rounding<__nv_bfloat16, std::uint16_t>(x);
            if (x > 1e-7F && x < 65000.0F) check_rounding<__half, std::uint16_t>(x);
        }
    }
    EXPECT_TRUE(std::isnan(as_float(rounded<__nv_bfloat16>(NAN))) && std::isnan(as_float(rounded<__half>(NAN))));
    EXPECT_TRUE(std::isinf(as_float(rounded<__half>(65520.0F))));
}

using sherd::cuda::ldmatrix_x4, sherd::cuda::mma_m16n8k16;

template <class T>
__device__ void copy_16_bytes(T* to, const T* from) {
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
}

/// c[16,16] = a[16,16] * b[16,16], all row-major, by one warp: the building block of an attention kernel on mma.sync.
template <class T>
__global__ void tile_product_kernel(float* c, const T* a, const T* b) {
    __shared__ __align__(16) T sa[16 * 24], sb[16 * 24];  // rows of 48 B: free of bank conflicts
    const int lane = static_cast<int>(threadIdx.x);
    copy_16_bytes(sa + lane / 2 * 24 + lane % 2 * 8, a + lane * 8);
    copy_16_bytes(sb + lane / 2 * 24 + lane % 2 * 8, b + lane * 8);
    __syncwarp();
    std::uint32_t ra[4], rb[4];
    ldmatrix_x4<false>(ra, sa + lane % 16 * 24 + lane / 16 * 8);  // tiles: rows 0-7 and 8-15 of columns 0-7, then of 8-15
    ldmatrix_x4<true>(rb, sb + lane % 16 * 24 + lane / 16 * 8);
    float d[2][4] = {};
    mma_m16n8k16<T>(d[0], ra, {rb[0], rb[1]});
    mma_m16n8k16<T>(d[1], ra, {rb[2], rb[3]});
    for (int half = 0; half < 2; ++half)
        for (int i = 0; i < 4; ++i) c[(lane / 4 + i / 2 * 8) * 16 + half * 8 + lane % 4 * 2 + i % 2] = d[half][i];
}

template <class T>
void check_tile_product() {
    const auto a0 = normal<T>(256, 1), b0 = normal<T>(256, 2);
    Buffer<T> a(a0), b(b0);
    Buffer<float> c(256);
    sherd::cuda::launch<tile_product_kernel<T>>({.block = dim3(32)}, c.get(), static_cast<const T*>(a), static_cast<const T*>(b));
    for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 16; ++j) {
            double sum = 0;
            for (int k = 0; k < 16; ++k) sum += double{as_float(a0[i * 16 + k])} * as_float(b0[k * 16 + j]);
            ASSERT_NEAR(c.host()[i * 16 + j], sum, 1e-5);
        }
}

TEST(TensorCores, MmaAndLdmatrix) {
    check_tile_product<__half>();
    check_tile_product<__nv_bfloat16>();
}

}  // namespace
