#pragma once
/// 16-bit floats as storage: bfloat16 and IEEE binary16, converted to and from float with round to nearest even.
#include <bit>
#include <cstdint>

namespace sherd {

/// bfloat16 bits. Arithmetic happens in float.
struct bfloat16 {
    std::uint16_t bits;
};
/// IEEE binary16 bits. Arithmetic happens in float.
struct float16 {
    std::uint16_t bits;
};

inline float to_float(float x) noexcept {
    return x;
}
inline float to_float(bfloat16 x) noexcept {
    return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

/// Round to nearest even; NaN stays NaN (quiet), overflow becomes infinity as in IEEE.
inline bfloat16 to_bfloat16(float x) noexcept {
    // all in 32 bits until the end: vectorizes with a single narrowing
    const auto u = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t rounded = u + 0x7fffu + ((u >> 16) & 1u), nan = u | 0x400000u;
    const std::uint32_t result = (u & 0x7fffffffu) > 0x7f800000u ? nan : rounded;
    return {static_cast<std::uint16_t>(result >> 16)};
}

inline float to_float(float16 x) noexcept {
    const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000u) << 16, rest = x.bits & 0x7fffu;
    if (rest >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | ((rest & 0x3ffu) << 13));
    if (rest >= 0x400u) return std::bit_cast<float>(sign | ((rest << 13) + 0x38000000u));
    const float subnormal = static_cast<float>(rest) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(subnormal));
}

/// Round to nearest even; NaN stays NaN, overflow becomes infinity.
inline float16 to_float16(float x) noexcept {
    const auto u = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return {static_cast<std::uint16_t>(sign | 0x7e00u)};
    if (magnitude >= 0x477ff000u) return {static_cast<std::uint16_t>(sign | 0x7c00u)};
    if (magnitude < 0x38800000u) {  // subnormal in half: let the float adder round at 2^-24
        const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
        return {static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u))};
    }
    const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u;
    return {static_cast<std::uint16_t>(sign | (rounded >> 13))};
}

template <class T>
T from_float(float x) noexcept;
template <>
inline float from_float<float>(float x) noexcept {
    return x;
}
template <>
inline bfloat16 from_float<bfloat16>(float x) noexcept {
    return to_bfloat16(x);
}
template <>
inline float16 from_float<float16>(float x) noexcept {
    return to_float16(x);
}

}  // namespace sherd
