/// Casts, sums, rotary embedding, SwiGLU, AdamW.
#include "backend_testing.hpp"

#include "sherd/backend/backend.hpp"
#include "sherd/runtime/error.hpp"

#include <limits>

namespace sherd::testing {
namespace {

TEST(Cast, RoundsToNearestEvenBothWays) {
    Device device;
    const double ulp = 0x1p-7;  // of bf16 at 1
    const Values in{1.0, 1.0 + ulp / 2, 1.0 + 3 * ulp / 2, 1.0 + ulp / 2 + 0x1p-20, -1.0 - ulp / 4, 3.5e38, 0.0};
    const Values expected{1.0, 1.0, 1.0 + 2 * ulp, 1.0 + ulp, -1.0, std::numeric_limits<double>::infinity(), 0.0};
    Matrix from(device, 1, 7, DType::f32, in), narrow(device, 1, 7, DType::bf16), back(device, 7, 1);
    device->cast(*device.stream, narrow, from);
    device->cast(*device.stream, back, narrow);
    EXPECT_EQ(narrow.read()[4], -1.0);
    // 3.5e38 is infinity in fp32 already, and stays it
    EXPECT_EQ(back.read(), expected);
}

TEST(Cast, ConvertsLongTensorsOfEveryPair) {
    Device device(3);
    const std::int64_t n = 20011;
    const Values values = random_values(n, 7, 1.0, DType::bf16);  // exact in bf16; in fp16 to 11 bits
    for (const auto a : {DType::f32, DType::bf16, DType::f16}) {
        for (const auto b : {DType::f32, DType::bf16, DType::f16}) {
            Matrix from(device, 1, n, a, values), to(device, 1, n, b);
            device->cast(*device.stream, to, from);
            expect_near(to.read(), values, a == DType::f16 || b == DType::f16 ? 1e-7 : 0.0, "cast");
        }
    }
}

TEST(Cast, UnknownTypesAreRefused) {
    Device device;
    Matrix x(device, 1, 4);
    Tensor integers = x;
    integers.dtype = DType::i32;
    device->cast(*device.stream, x, integers);
    EXPECT_THROW(device->synchronize(*device.stream), DeviceError);
}

TEST(Add, AddsEveryElement) {
    const std::int64_t n = 40003;
    for (const auto type : {DType::f32, DType::bf16, DType::f16}) {
        Device device(3);
        const Values a = random_values(n, 1), b = random_values(n, 2, 1.0, DType::bf16);
        Matrix y(device, 1, n, DType::f32, a), x(device, 1, n, type, b), fresh(device, 1, n, DType::f32, Values(b.size(), std::nan("")));
        const Values added = x.read();
        device->add(*device.stream, y, x, true);
        device->add(*device.stream, {y.floats(), DType::f32, 1, 0}, {x.floats(), type, 1, 0}, true);
        device->add(*device.stream, fresh, x, false);
        const Values sum = y.read();
        for (std::size_t i = 0; i < sum.size(); ++i) {
            ASSERT_EQ(sum[i], static_cast<double>(static_cast<float>(a[i]) + static_cast<float>(added[i])));
        }
        EXPECT_EQ(fresh.read(), added);
    }
}

TEST(Add, RoundsTheSumToNearestEven) {
    Device device;
    const double ulp = 0x1p-7;  // of bf16 at 1
    Matrix y(device, 1, 3, DType::bf16, {1.0, 1.0 + ulp, -2.0}), x(device, 1, 3, DType::f32, {ulp / 2, ulp / 2, 2.0 + 0x1p-20});
    device->add(*device.stream, y, x, true);
    EXPECT_EQ(y.read(), (Values{1.0, 1.0 + 2 * ulp, 0x1p-20}));
}

TEST(Add, StartsFromZeroWithoutAccumulate) {
    Device device;
    Matrix x(device, 1, 2, DType::bf16, {-0.0, -0.0}), sum(device, 1, 2, DType::f32, {-0.0, -0.0}), fresh(device, 1, 2);
    device->add(*device.stream, sum, x, true);
    device->add(*device.stream, fresh, x, false);
    for (const double v : sum.read()) EXPECT_TRUE(std::signbit(v));
    for (const double v : fresh.read()) EXPECT_TRUE(v == 0 && !std::signbit(v)) << v;
}

TEST(Add, WhatDoesNotFitIsRefused) {
    Device device;
    Matrix x(device, 1, 4), y(device, 1, 3);
    EXPECT_THROW(device->add(*device.stream, y, x, true), DeviceError);
    Tensor integers = x;
    integers.dtype = DType::i32;
    device->add(*device.stream, x, integers, true);
    EXPECT_THROW(device->synchronize(*device.stream), DeviceError);
}

double sum_on(int threads, const Values& values, bool squares) {
    Device device(threads);
    const auto n = static_cast<std::int64_t>(values.size());
    Matrix x(device, 1, n, DType::f32, values);
    DeviceMemory total(*device.backend, sizeof(double), "a test");
    double result = 0.25;
    device->copy_to_device(*device.stream, total.data(), &result, sizeof result);
    if (squares) {
        device->sum_squares(*device.stream, total.as<double>(), x.floats(), n);
    } else {
        device->sum(*device.stream, total.as<double>(), x.floats(), n);
    }
    device->copy_to_host(*device.stream, &result, total.data(), sizeof result);
    device->synchronize(*device.stream);
    return result;
}

TEST(Sum, IsExactInDoubleAndEqualOnAllThreads) {
    for (const std::int64_t n : {0, 1, 31, 33, 16384, 16385, 200003}) {
        const Values values = random_values(n, 5);
        double plain = 0.25, squares = 0.25;
        for (const double v : values) {
            plain += v;
            squares += v * v;
        }
        EXPECT_NEAR(sum_on(1, values, false), plain, 1e-11 * (1 + std::sqrt(static_cast<double>(n)))) << n;
        EXPECT_NEAR(sum_on(1, values, true), squares, 1e-13 * (1 + squares)) << n;
        for (const int threads : {2, 3}) {
            EXPECT_EQ(sum_on(1, values, false), sum_on(threads, values, false));
            EXPECT_EQ(sum_on(1, values, true), sum_on(threads, values, true));
        }
    }
}

TEST(Sum, NonFiniteElementsShowAndLargeOnesDoNotOverflow) {
    Values values = random_values(50000, 5);
    values[49999] = std::numeric_limits<double>::quiet_NaN();
    EXPECT_FALSE(std::isfinite(sum_on(2, values, true)));
    values[49999] = std::numeric_limits<double>::infinity();
    EXPECT_FALSE(std::isfinite(sum_on(2, values, true)));
    values[49999] = 1e30;  // its square is infinite in fp32
    EXPECT_NEAR(sum_on(2, values, true), 1e60, 1e54);
}

class Compute : public ::testing::TestWithParam<DType> {
  protected:
    DType type = GetParam();
    double tolerance = type == DType::f32 ? 2e-6 : 5e-3;
    Device device;
};
INSTANTIATE_TEST_SUITE_P(Types, Compute, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& instance) { return std::string(name_of(instance.param)); });

TEST_P(Compute, RopeTurnsHalvesTogether) {
    const std::int64_t rows = 9, heads = 3, d = 10, half = d / 2, positions = 40;
    const Values x = random_values(rows * heads * d, 1, 1.0, type);
    Values cosine, sine, expected(x.size());
    std::vector<std::int32_t> at{0, 1, 2, 39, 0, 1, 17, 0, 0};
    for (std::int64_t p = 0; p < positions; ++p) {
        for (std::int64_t i = 0; i < half; ++i) {
            const double angle = static_cast<double>(p) * std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
            cosine.push_back(std::cos(angle));
            sine.push_back(std::sin(angle));
        }
    }
    for (std::int64_t t = 0; t < rows; ++t) {
        for (std::int64_t h = 0; h < heads; ++h) {
            for (std::int64_t i = 0; i < half; ++i) {
                const auto low = static_cast<std::size_t>((t * heads + h) * d + i), high = low + static_cast<std::size_t>(half);
                const auto angle = static_cast<std::size_t>(at[static_cast<std::size_t>(t)] * half + i);
                expected[low] = x[low] * cosine[angle] - x[high] * sine[angle];
                expected[high] = x[high] * cosine[angle] + x[low] * sine[angle];
            }
        }
    }
    Matrix m(device, rows, heads * d, type, x), c(device, positions, half, DType::f32, cosine),
        s(device, positions, half, DType::f32, sine);
    Integers where(device, at);
    device->rope(*device.stream, m, heads, c.floats(), s.floats(), where.data(), false);
    expect_near(m.read(), expected, tolerance, "rotated");
    device->rope(*device.stream, m, heads, c.floats(), s.floats(), where.data(), true);
    expect_near(m.read(), x, 2 * tolerance, "turned back");
}

double silu(double x) {
    return x / (1 + std::exp(-x));
}

TEST_P(Compute, SwigluAndItsGradient) {
    const std::int64_t rows = 7, columns = 1301;  // more than one block of elements
    Values g = random_values(rows * columns, 1, 3.0, type), u = random_values(rows * columns, 2, 1.0, type);
    const Values d = random_values(rows * columns, 3, 1.0, type);
    g[5] = -200;  // far beyond where exp(-x) is finite
    g[6] = 200;
    g[7] = u[7] = 0;
    Matrix gate(device, rows, columns, type, g), up(device, rows, columns, type, u), dout(device, rows, columns, type, d);
    Matrix out(device, rows, columns, type);
    device->swiglu_forward(*device.stream, out, gate, up);
    device->swiglu_backward(*device.stream, gate, up, dout);
    const Values y = out.read(), dg = gate.read(), du = up.read(), again = dout.read();
    Values expected(g.size()), expected_dg(g.size()), expected_du(g.size());
    const double h = 1e-5;
    for (std::size_t i = 0; i < g.size(); ++i) {
        expected[i] = silu(g[i]) * u[i];
        expected_dg[i] = d[i] * u[i] * (silu(g[i] + h) - silu(g[i] - h)) / (2 * h);
        expected_du[i] = d[i] * silu(g[i]);
    }
    const double bound = 0.02 * tolerance;  // the element at 200 is far larger than the rest: bounds for the rest
    expect_near(y, expected, tolerance, "out");
    expect_near(again, expected, tolerance, "out again");
    expect_near(dg, expected_dg, tolerance, "dgate");
    expect_near(du, expected_du, tolerance, "dup");
    for (std::size_t i = 8; i < g.size(); ++i) {
        ASSERT_NEAR(y[i], expected[i], bound + tolerance * std::abs(expected[i])) << i;
        ASSERT_NEAR(du[i], expected_du[i], bound + tolerance * std::abs(expected_du[i])) << i;
    }
    EXPECT_NEAR(y[5], 0.0, 1e-35);
    EXPECT_EQ(dg[7], 0.0);
}

TEST(SwigluEdge, NoRows) {
    Device device;
    const Tensor none{nullptr, DType::f32, 0, 8};
    device->swiglu_forward(*device.stream, none, none, none);
    device->swiglu_backward(*device.stream, none, none, none);
    EXPECT_NO_THROW(device->synchronize(*device.stream));
}

/// torch.optim.AdamW as its documentation states it, in double.
void adamw_reference(const AdamWStep& s, Values& p, Values& m, Values& v, const Values& gradient) {
    for (std::size_t i = 0; i < p.size(); ++i) {
        const double g = gradient[i] * s.gradient_scale;
        p[i] -= s.learning_rate * s.weight_decay * p[i];
        m[i] = s.beta1 * m[i] + (1 - s.beta1) * g;
        v[i] = s.beta2 * v[i] + (1 - s.beta2) * g * g;
        p[i] -= s.learning_rate * (m[i] / s.bias1) / (std::sqrt(v[i] / s.bias2) + s.epsilon);
    }
}

TEST(AdamW, FollowsTheDefinitionOverSteps) {
    const std::int64_t n = 20011;
    for (const auto type : {DType::f32, DType::bf16, DType::f16}) {
        Device device(3);
        Values p = random_values(n, 1), m(p.size(), 0.0), v(p.size(), 0.0);
        Matrix master(device, 1, n, DType::f32, p), mean(device, 1, n, DType::f32, m), square(device, 1, n, DType::f32, v);
        Matrix weights(device, 1, n, type);
        for (int t = 1; t <= 3; ++t) {
            AdamWStep step{1e-2, 0.9, 0.999, 1e-8, 0.1, 1 - std::pow(0.9, t), 1 - std::pow(0.999, t), 0.5};
            Values g = random_values(n, 10 + static_cast<unsigned>(t));
            g[3] = 0;
            Matrix gradient(device, 1, n, DType::f32, g);
            device->adamw(*device.stream, step, master.floats(), mean.floats(), square.floats(), gradient.floats(), weights, n);
            device->synchronize(*device.stream);
            adamw_reference(step, p, m, v, g);
        }
        expect_near(master.read(), p, 3e-7, "masters");
        expect_near(mean.read(), m, 3e-7, "mean");
        expect_near(square.read(), v, 5e-7, "mean of squares");
        const Values written = weights.read(), exact = master.read();
        for (std::size_t i = 0; i < written.size(); ++i) {
            const auto single = static_cast<float>(exact[i]);
            const float rounded = type == DType::f32    ? single
                                  : type == DType::bf16 ? to_float(to_bfloat16(single))
                                                        : to_float(to_float16(single));
            ASSERT_EQ(written[i], static_cast<double>(rounded)) << i;
        }
    }
}

TEST(AdamW, WithoutWeightsMovesTheMastersAlike) {
    Device device;
    const std::int64_t n = 131;
    const AdamWStep step{1e-3, 0.9, 0.95, 1e-8, 0.0, 0.1, 0.05, 1.0};
    const Values p = random_values(n, 1), g = random_values(n, 2);
    Matrix a(device, 1, n, DType::f32, p), b(device, 1, n, DType::f32, p), weights(device, 1, n), gradient(device, 1, n, DType::f32, g);
    Matrix m1(device, 1, n, DType::f32, Values(p.size(), 0.0)), m2(device, 1, n, DType::f32, Values(p.size(), 0.0));
    Matrix v1(device, 1, n, DType::f32, Values(p.size(), 0.0)), v2(device, 1, n, DType::f32, Values(p.size(), 0.0));
    device->adamw(*device.stream, step, a.floats(), m1.floats(), v1.floats(), gradient.floats(), weights, n);
    device->adamw(*device.stream, step, b.floats(), m2.floats(), v2.floats(), gradient.floats(), {}, n);
    EXPECT_EQ(a.raw(), b.raw());
    EXPECT_EQ(a.raw(), weights.raw());
    EXPECT_NE(a.read(), p);
}

}  // namespace
}  // namespace sherd::testing
