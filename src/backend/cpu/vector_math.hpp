#pragma once
/// The pieces of vectorized loops: an exponential that vectorizes, the choice of the instruction set, static division of work.
#include "backend/cpu/machine.hpp"

#include "sherd/runtime/error.hpp"
#include "sherd/tensor/half.hpp"
#include "sherd/tensor/tensor.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace sherd::cpu {

#define SHERD_INLINE __attribute__((always_inline))
// what x86-64-v4 adds to v3, with 512-bit registers, which gcc's generic tuning would not use
#define SHERD_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512cd,fma,prefer-vector-width=512")))

template <class F>
SHERD_AVX512 __attribute__((noinline)) void run_avx512(const F& body) {
    body();
}

/// Runs body() compiled for AVX-512 where the CPU has it, else for the baseline. The body must be declared SHERD_INLINE and must neither
/// throw nor contain OpenMP regions other than simd.
template <class F>
inline void widest(const F& body) {
    if (has_avx512()) {
        run_avx512(body);
    } else {
        body();
    }
}

/// e^x within 1.2e-7 relative from -87.3 to 88; 0 below (its denormals are flushed), something above e^88 or infinity beyond, NaN for NaN.
/// Cody-Waite reduction and the polynomial of Cephes' expf.
SHERD_INLINE inline float exponential(float x) noexcept {
    constexpr float magic = 0x1.8p23f, most = magic + 127.0f;
    const float in = x < -88.0f ? -88.0f : x;               // n = -127 there, whose power of two comes out as 0
    const float integer = in * 1.44269504f + magic;         // the integer nearest to x log2(e) stands in the low bits
    const float shifted = integer > most ? most : integer;  // beyond, the polynomial grows in place of the power
    const float n = shifted - magic;
    const float r = std::fma(n, 2.12194440e-4f, std::fma(n, -0.693359375f, in));
    float p = 1.9875691500e-4f;
    p = std::fma(p, r, 1.3981999507e-3f);
    p = std::fma(p, r, 8.3334519073e-3f);
    p = std::fma(p, r, 4.1665795894e-2f);
    p = std::fma(p, r, 1.6666665459e-1f);
    p = std::fma(p, r, 5.0000001201e-1f);
    p = std::fma(p, r * r, r) + 1.0f;
    return p * std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) << 23) + 0x3f800000u);
}

/// Calls f.operator()<T>() with the C++ type of a compute type.
template <class F>
void with_compute_type(DType type, F&& f) {
    switch (type) {
        case DType::f32:
            return f.template operator()<float>();
        case DType::bf16:
            return f.template operator()<bfloat16>();
        default:
            throw DeviceError("the CPU computes in fp32 and bf16, not in {}", name_of(type));
    }
}

/// f(first, last) over [0, n) in blocks of equal size on all threads. The blocks do not depend on the number of threads.
template <class F>
void for_blocks(std::int64_t n, std::int64_t block, const F& f) {
    const std::int64_t count = (n + block - 1) / block;
    if (count <= 1) {
        if (n > 0) f(std::int64_t{0}, n);
        return;
    }
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < count; ++i) f(i * block, std::min(n, (i + 1) * block));
}

/// Elements of a block of an elementwise operation: a few times the cost of handing it out, still within the caches.
inline constexpr std::int64_t element_block = 8192;

/// Memory of one thread that grows to the largest size asked for and stays.
class Scratch {
  public:
    Scratch() = default;
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch() { release_memory(data_); }
    void* bytes(std::size_t count) {
        if (count > capacity_) {
            release_memory(data_);
            data_ = nullptr;
            capacity_ = 0;
            data_ = allocate_memory(count, "scratch of a CPU operation");
            capacity_ = count;
        }
        return data_;
    }
    float* floats(std::int64_t count) { return static_cast<float*>(bytes(static_cast<std::size_t>(count) * sizeof(float))); }

  private:
    void* data_ = nullptr;
    std::size_t capacity_ = 0;
};

}  // namespace sherd::cpu
