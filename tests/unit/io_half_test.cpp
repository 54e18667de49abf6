/// Both 16-bit formats against their definitions (IEEE 754-2019, 3.4; bfloat16 is binary32 cut at 16 bits), in double arithmetic.
#include "sherd/tensor/half.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

using namespace sherd;

namespace {
/// The value that sign, exponent and mantissa of a binary format mean.
double defined_value(unsigned bits, int mantissa_bits, int exponent_bits) {
    const int mantissa = static_cast<int>(bits & ((1u << mantissa_bits) - 1)), largest = (1 << exponent_bits) - 1, bias = largest / 2;
    const int exponent = static_cast<int>(bits >> mantissa_bits) & largest;
    const double sign = (bits & 0x8000u) != 0 ? -1 : 1;
    if (exponent == largest) return mantissa != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

template <class Half>
void check_all_patterns(int mantissa_bits, int exponent_bits) {
    for (unsigned bits = 0; bits < 65536; ++bits) {
        const double expected = defined_value(bits, mantissa_bits, exponent_bits);
        const float found = to_float(Half{static_cast<std::uint16_t>(bits)});
        const Half back = from_float<Half>(found);
        if (std::isnan(expected)) {
            ASSERT_TRUE(std::isnan(found)) << bits;
            ASSERT_TRUE(std::isnan(to_float(back))) << bits;
            ASSERT_EQ(back.bits & 0x8000u, bits & 0x8000u) << bits;
        } else {
            ASSERT_EQ(static_cast<double>(found), expected) << bits;
            ASSERT_EQ(std::signbit(found), (bits & 0x8000u) != 0) << bits;
            ASSERT_EQ(back.bits, bits);
        }
    }
}

/// Between each pair of finite neighbours: the middle goes to the even one, a little more or less to the nearer one.
template <class Half>
void check_rounding(int mantissa_bits, int exponent_bits) {
    const unsigned infinity = ((1u << exponent_bits) - 1) << mantissa_bits;
    for (unsigned bits = 0; bits + 1 < infinity; ++bits) {
        const double low = defined_value(bits, mantissa_bits, exponent_bits), high = defined_value(bits + 1, mantissa_bits, exponent_bits);
        const auto middle = static_cast<float>((low + high) / 2);  // exact: float has more than one bit more
        ASSERT_EQ(static_cast<double>(middle), (low + high) / 2);
        const unsigned even = bits % 2 == 0 ? bits : bits + 1;
        ASSERT_EQ(from_float<Half>(middle).bits, even) << bits;
        ASSERT_EQ(from_float<Half>(-middle).bits, even | 0x8000u) << bits;
        ASSERT_EQ(from_float<Half>(std::nextafter(middle, 0.0f)).bits, bits) << bits;
        ASSERT_EQ(from_float<Half>(std::nextafter(middle, std::numeric_limits<float>::infinity())).bits, bits + 1) << bits;
    }
}
}  // namespace

TEST(Half, EveryBfloat16PatternMeansWhatItsDefinitionSays) {
    check_all_patterns<bfloat16>(7, 8);
}
TEST(Half, EveryFloat16PatternMeansWhatItsDefinitionSays) {
    check_all_patterns<float16>(10, 5);
}
TEST(Half, Bfloat16RoundsToNearestEven) {
    check_rounding<bfloat16>(7, 8);
}
TEST(Half, Float16RoundsToNearestEven) {
    check_rounding<float16>(10, 5);
}

TEST(Half, OverflowBecomesInfinity) {
    EXPECT_EQ(to_float16(65504.0f).bits, 0x7bffu);
    EXPECT_EQ(to_float16(std::nextafter(65520.0f, 0.0f)).bits, 0x7bffu);
    EXPECT_EQ(to_float16(65520.0f).bits, 0x7c00u);
    EXPECT_EQ(to_float16(-1e30f).bits, 0xfc00u);
    EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::max()).bits, 0x7f80u);
    EXPECT_EQ(to_bfloat16(-std::numeric_limits<float>::infinity()).bits, 0xff80u);
}
