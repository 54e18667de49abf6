#pragma once
/// The part of CUDA C++ that kernels use, for a plain C++ compiler. Types, 16-bit formats and their conversions come from the
/// toolkit's own headers, which compile for the host; only what needs a device is here. Include before any kernel source.
#include "execution.hpp"
// execution.hpp has included cuda_runtime.h, whose definitions of these are empty without nvcc.
#undef __shared__
#define __shared__ static
#undef __launch_bounds__
#define __launch_bounds__(...)
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <type_traits>
#include <vector>

// ---- barriers and fences --------------------------------------------------------------------------------------------

inline void __syncthreads(emu::Where w = emu::Where::current()) {
    emu::barrier(true, w);
}
inline int __syncthreads_count(int p, emu::Where w = emu::Where::current()) {
    return emu::barrier(p != 0, w).count;
}
inline int __syncthreads_and(int p, emu::Where w = emu::Where::current()) {
    return emu::barrier(p != 0, w).all;
}
inline int __syncthreads_or(int p, emu::Where w = emu::Where::current()) {
    return emu::barrier(p != 0, w).any;
}
inline void __threadfence() {}
inline void __threadfence_block() {}
[[noreturn]] inline void __trap() {
    emu::fail("__trap");
}

inline void __syncwarp(unsigned mask = 0xffffffffU, emu::Where w = emu::Where::current()) {
    emu::warp_collective(mask, "__syncwarp", nullptr, nullptr, w);
}

// ---- warp shuffles, votes and reductions ----------------------------------------------------------------------------

namespace emu {

template <class T>
struct Shuffle {
    T value, result;
    unsigned source;  // lane to read
};

template <class T>
T shuffle(unsigned mask, T value, unsigned source, const char* kind, Where where) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8, "no such overload on a device");
    Shuffle<T> op{value, value, source};
    warp_collective(
        mask, kind, &op,
        [](void* const operands[32], unsigned present) {
            for (unsigned l = 0; l < 32; ++l) {
                if ((present >> l & 1U) == 0) continue;
                auto& self = *static_cast<Shuffle<T>*>(operands[l]);
                if ((present >> self.source & 1U) != 0) {
                    self.result = static_cast<Shuffle<T>*>(operands[self.source])->value;
                    self.source = 32;  // served
                }
            }
        },
        where);
    if (op.source != 32) fail("%s at %s:%u reads lane %u, which takes no part", kind, file(where), where.line, op.source);
    return op.result;
}

template <class T>
struct Reduce {
    T value, result;
};

template <class T, class F>
T reduce(unsigned mask, T value, const char* kind, F, Where where) {
    Reduce<T> op{value, value};
    warp_collective(
        mask, kind, &op,
        [](void* const operands[32], unsigned present) {
            const T total = F{}(operands, present);
            for (unsigned l = 0; l < 32; ++l)
                if ((present >> l & 1U) != 0) static_cast<Reduce<T>*>(operands[l])->result = total;
        },
        where);
    return op.result;
}

template <auto Fold>
struct Folding {
    auto operator()(void* const operands[32], unsigned present) const {
        unsigned total = 0;
        bool first = true;
        for (unsigned l = 0; l < 32; ++l) {
            if ((present >> l & 1U) == 0) continue;
            const unsigned v = static_cast<Reduce<unsigned>*>(operands[l])->value;
            total = first ? Fold(0U, v, l, true) : Fold(total, v, l, false);
            first = false;
        }
        return total;
    }
};
inline constexpr auto ballot = [](unsigned t, unsigned v, unsigned l, bool) { return t | (v != 0 ? 1U << l : 0U); };
inline constexpr auto sum = [](unsigned t, unsigned v, unsigned, bool) { return t + v; };
inline constexpr auto lowest = [](unsigned t, unsigned v, unsigned, bool first) { return first ? v : std::min(t, v); };
inline constexpr auto highest = [](unsigned t, unsigned v, unsigned, bool first) { return first ? v : std::max(t, v); };

}  // namespace emu

template <class T>
T __shfl_sync(unsigned mask, T v, int lane, int width = 32, emu::Where w = emu::Where::current()) {
    const unsigned segment = emu::lane() & ~(unsigned(width) - 1U);
    return emu::shuffle(mask, v, segment + (unsigned(lane) & (unsigned(width) - 1U)), "__shfl_sync", w);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T v, int bits, int width = 32, emu::Where w = emu::Where::current()) {
    const unsigned self = emu::lane(), source = self ^ unsigned(bits);
    return emu::shuffle(mask, v, source < (self & ~(unsigned(width) - 1U)) + unsigned(width) ? source : self, "__shfl_xor_sync", w);
}
template <class T>
T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32, emu::Where w = emu::Where::current()) {
    const unsigned self = emu::lane();
    return emu::shuffle(mask, v, (self & (unsigned(width) - 1U)) + by < unsigned(width) ? self + by : self, "__shfl_down_sync", w);
}
template <class T>
T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32, emu::Where w = emu::Where::current()) {
    const unsigned self = emu::lane();
    return emu::shuffle(mask, v, (self & (unsigned(width) - 1U)) >= by ? self - by : self, "__shfl_up_sync", w);
}
inline unsigned __ballot_sync(unsigned mask, int p, emu::Where w = emu::Where::current()) {
    return emu::reduce(mask, unsigned(p != 0), "__ballot_sync", emu::Folding<emu::ballot>{}, w);
}
inline int __any_sync(unsigned mask, int p, emu::Where w = emu::Where::current()) {
    return __ballot_sync(mask, p, w) != 0;
}
inline int __all_sync(unsigned mask, int p, emu::Where w = emu::Where::current()) {
    return __ballot_sync(mask, p == 0, w) == 0;
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned v, emu::Where w = emu::Where::current()) {
    return emu::reduce(mask, v, "__reduce_add_sync", emu::Folding<emu::sum>{}, w);
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned v, emu::Where w = emu::Where::current()) {
    return emu::reduce(mask, v, "__reduce_min_sync", emu::Folding<emu::lowest>{}, w);
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned v, emu::Where w = emu::Where::current()) {
    return emu::reduce(mask, v, "__reduce_max_sync", emu::Folding<emu::highest>{}, w);
}

// ---- atomics --------------------------------------------------------------------------------------------------------
// Fibers switch only inside the emulation, so a plain read-modify-write is atomic. Not inlined: the kernel's file is
// instrumented, and these accesses must reach the checker as atomic ones.

namespace emu {
template <class T, class F>
__attribute__((noinline, no_sanitize("thread"))) T atomic(T* p, F update) {
    if (observer) observer->atomic_access(p, sizeof(T), __builtin_return_address(0));
    const T old = *p;
    *p = update(old);
    return old;
}
}  // namespace emu
#define EMU_ATOMIC(name, T, expression)                                                \
    inline T name(T* p, T v) {                                                         \
        return emu::atomic(p, [v](T old) -> T { return static_cast<T>(expression); }); \
    }
#define EMU_ATOMICS(T)                                                          \
    EMU_ATOMIC(atomicAdd, T, old + v)                                           \
    EMU_ATOMIC(atomicSub, T, old - v)                                           \
    EMU_ATOMIC(atomicMin, T, v < old ? v : old)                                 \
    EMU_ATOMIC(atomicMax, T, old < v ? v : old)                                 \
    EMU_ATOMIC(atomicExch, T, (void(old), v))                                   \
    EMU_ATOMIC(atomicAnd, T, old& v)                                            \
    EMU_ATOMIC(atomicOr, T, old | v)                                            \
    inline T atomicCAS(T* p, T compare, T v) {                                  \
        return emu::atomic(p, [=](T old) { return old == compare ? v : old; }); \
    }
EMU_ATOMICS(int)
EMU_ATOMICS(unsigned)
EMU_ATOMICS(unsigned long long)
EMU_ATOMIC(atomicAdd, float, old + v)
EMU_ATOMIC(atomicExch, float, (void(old), v))
#undef EMU_ATOMICS
#undef EMU_ATOMIC

// ---- loads, stores, bits and arithmetic -----------------------------------------------------------------------------

template <class T>
T __ldg(const T* p) {
    return *p;
}
template <class T>
T __ldcs(const T* p) {
    return *p;
}
template <class T>
T __ldcg(const T* p) {
    return *p;
}
template <class T>
void __stcs(T* p, T v) {
    *p = v;
}
template <class T>
void __stcg(T* p, T v) {
    *p = v;
}

using std::isfinite;  // nvcc has them as global functions
using std::isinf;
using std::isnan;
inline float __expf(float x) {
    return std::exp(x);
}
inline float __logf(float x) {
    return std::log(x);
}
inline float __log2f(float x) {
    return std::log2(x);
}
inline float __powf(float x, float y) {
    return std::pow(x, y);
}
inline float __sinf(float x) {
    return std::sin(x);
}
inline float __cosf(float x) {
    return std::cos(x);
}
inline float __fdividef(float x, float y) {
    return x / y;
}
inline float __frcp_rn(float x) {
    return 1.0F / x;
}
inline float __fsqrt_rn(float x) {
    return std::sqrt(x);
}
inline float __fmaf_rn(float x, float y, float z) {
    return std::fma(x, y, z);
}
inline float __fadd_rn(float x, float y) {
    return x + y;
}
inline float __fmul_rn(float x, float y) {
    return x * y;
}
inline float __saturatef(float x) {
    return x > 0.0F ? std::min(x, 1.0F) : 0.0F;
}
inline float rsqrtf(float x) {
    return 1.0F / std::sqrt(x);
}
inline int __float2int_rn(float x) {
    return static_cast<int>(std::nearbyint(x));
}
inline float __int2float_rn(int x) {
    return static_cast<float>(x);
}
inline int __float_as_int(float x) {
    return std::bit_cast<int>(x);
}
inline unsigned __float_as_uint(float x) {
    return std::bit_cast<unsigned>(x);
}
inline float __int_as_float(int x) {
    return std::bit_cast<float>(x);
}
inline float __uint_as_float(unsigned x) {
    return std::bit_cast<float>(x);
}
inline int __popc(unsigned x) {
    return std::popcount(x);
}
inline int __clz(int x) {
    return std::countl_zero(static_cast<unsigned>(x));
}
inline int __ffs(int x) {
    return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1;
}
inline unsigned __umulhi(unsigned x, unsigned y) {
    return static_cast<unsigned>((std::uint64_t{x} * y) >> 32);
}

#define EMU_MIN_MAX(T)        \
    inline T min(T a, T b) {  \
        return b < a ? b : a; \
    }                         \
    inline T max(T a, T b) {  \
        return a < b ? b : a; \
    }
EMU_MIN_MAX(int)
EMU_MIN_MAX(unsigned)
EMU_MIN_MAX(long)
EMU_MIN_MAX(unsigned long)
EMU_MIN_MAX(long long)
EMU_MIN_MAX(unsigned long long)
#undef EMU_MIN_MAX
inline float min(float a, float b) {
    return std::fmin(a, b);
}
inline float max(float a, float b) {
    return std::fmax(a, b);
}

// The toolkit declares these for nvcc only.
inline __half __hfma(__half a, __half b, __half c) {
    return __float2half(std::fma(__half2float(a), __half2float(b), __half2float(c)));
}
inline __nv_bfloat16 __hfma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) {
    return __float2bfloat16(std::fma(__bfloat162float(a), __bfloat162float(b), __bfloat162float(c)));
}

// ---- launch ---------------------------------------------------------------------------------------------------------

namespace emu {

struct Access {
    const void* address;
    bool writes;
};

/// Set by fake_cudart.cpp: puts the launch on a stream. Null: a launch runs at once.
using Submit = void (*)(cudaStream_t, std::string name, const Access* accesses, std::size_t count, std::function<void()> run);
inline Submit submit = nullptr;

/// A pointer parameter says by its constness whether the kernel writes through it.
template <class P>
void note(std::vector<Access>& list, P p) {
    if constexpr (std::is_pointer_v<P>) list.push_back({p, !std::is_const_v<std::remove_pointer_t<P>>});
}

template <class... P>
void launch(std::string name, void (*kernel)(P...), dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream, P... arguments) {
    Launch l{grid, block, shared_bytes, std::move(name), reinterpret_cast<const void*>(kernel)};
    std::vector<Access> accesses;
    (note(accesses, arguments), ...);
    const auto call = [kernel, arguments...] { kernel(arguments...); };
    const auto go = [l, call] { run(l, call); };
    if (submit) return submit(stream, l.name, accesses.data(), accesses.size(), go);
    go();
}

}  // namespace emu
