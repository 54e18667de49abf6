/// Products with weights, forward and backward, against Eigen's in double.
#include "backend/cpu/kernels.hpp"
#include "backend_testing.hpp"

#include "sherd/backend/backend.hpp"
#include "sherd/runtime/error.hpp"

#include <Eigen/Dense>

#include <tuple>

namespace sherd::testing {
namespace {

using cpu::Bf16Products;

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// The values as a matrix of Eigen, whose products in double are the oracle.
Eigen::Map<RowMajor> matrix(Values& values, std::int64_t rows, std::int64_t columns) {
    return {values.data(), rows, columns};
}

struct Sizes {
    std::int64_t rows, inputs, outputs;
};

class Linear : public ::testing::TestWithParam<std::tuple<Sizes, DType, Bf16Products>> {
  protected:
    Sizes s = std::get<0>(GetParam());
    DType type = std::get<1>(GetParam());
    Bf16Products products = std::get<2>(GetParam());
    double tolerance = type == DType::f32 ? 5e-6 : 5e-3;
    Device device;
    Values x = random_values(s.rows * s.inputs, 1, 1.0, type), w = random_values(s.outputs * s.inputs, 2, 1.0, type);
    Values dy = random_values(s.rows * s.outputs, 3, 1.0, type);

    void SetUp() override {
        if (type == DType::bf16 && products == Bf16Products::native && !device->has_native(DType::bf16)) GTEST_SKIP() << "no avx512_bf16";
    }
    void in_stream(std::function<void()> operation) { device->host_task(*device.stream, std::move(operation)); }
};

TEST_P(Linear, Forward) {
    Values expected(static_cast<std::size_t>(s.rows * s.outputs), 0.0);
    matrix(expected, s.rows, s.outputs) = matrix(x, s.rows, s.inputs) * matrix(w, s.outputs, s.inputs).transpose();
    Matrix dx(device, s.rows, s.inputs, type, x), dw(device, s.outputs, s.inputs, type, w), y(device, s.rows, s.outputs, type);
    Matrix y32(device, s.rows, s.outputs);
    in_stream([&] { cpu::linear_forward(y, dx, dw, {}, products); });
    in_stream([&] { cpu::linear_forward(y32, dx, dw, {}, products); });
    expect_near(y.read(), expected, tolerance, "y");
    expect_near(y32.read(), expected, 5e-6, "y in fp32");

    const Values bias = random_values(s.outputs, 6, 3.0, type);
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += bias[i % bias.size()];
    Matrix b(device, 1, s.outputs, type, bias), b32(device, 1, s.outputs, DType::f32, bias);
    in_stream([&] { cpu::linear_forward(y, dx, dw, b, products); });
    in_stream([&] { cpu::linear_forward(y32, dx, dw, b32, products); });
    expect_near(y.read(), expected, tolerance, "y with bias");
    expect_near(y32.read(), expected, 5e-6, "y in fp32 with bias");
    in_stream([&] { cpu::linear_forward(y, dx, dw, {}, products); });
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] -= bias[i % bias.size()];
    expect_near(y.read(), expected, tolerance, "y, again without");
}

TEST_P(Linear, ProductAndBiasAreRoundedOnce) {
    if (s.rows != 1 || s.inputs != 12) GTEST_SKIP() << "a case of its own: once is enough";
    // bf16 has 8 bits: 257 rounded alone is 256
    Matrix in(device, 1, 2, type, Values{1, 1}), weights(device, 2, 2, type, Values{256, 1, 2, 3});
    Matrix b(device, 1, 2, type, Values{-256, 4}), y(device, 1, 2, type);
    in_stream([&] { cpu::linear_forward(y, in, weights, b, products); });
    EXPECT_EQ(y.read(), (Values{1, 9}));
}

TEST_P(Linear, BackwardInput) {
    const Values start = random_values(s.rows * s.inputs, 4, 1.0, type);
    for (const bool accumulate : {false, true}) {
        Values expected = accumulate ? start : Values(start.size(), 0.0);
        matrix(expected, s.rows, s.inputs) += matrix(dy, s.rows, s.outputs) * matrix(w, s.outputs, s.inputs);
        Matrix dx(device, s.rows, s.inputs, type, start), dw(device, s.outputs, s.inputs, type, w), d(device, s.rows, s.outputs, type, dy);
        in_stream([&] { cpu::linear_backward_input(dx, d, dw, accumulate, products); });
        expect_near(dx.read(), expected, tolerance, accumulate ? "dx accumulated" : "dx");
    }
}

TEST_P(Linear, BackwardWeightInFp32) {
    const Values start = random_values(s.outputs * s.inputs, 5);
    for (const bool accumulate : {false, true}) {
        Values expected = accumulate ? start : Values(start.size(), 0.0);
        matrix(expected, s.outputs, s.inputs) += matrix(dy, s.rows, s.outputs).transpose() * matrix(x, s.rows, s.inputs);
        Matrix dw(device, s.outputs, s.inputs, DType::f32, start), d(device, s.rows, s.outputs, type, dy),
            in(device, s.rows, s.inputs, type, x);
        in_stream([&] { cpu::linear_backward_weight(dw, d, in, accumulate, products); });
        expect_near(dw.read(), expected, 5e-6, accumulate ? "dw accumulated" : "dw");
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Linear,
                         ::testing::Combine(::testing::Values(Sizes{1, 1, 1}, Sizes{1, 12, 131}, Sizes{16, 64, 40}, Sizes{37, 10, 7},
                                                              Sizes{80, 131, 33}, Sizes{0, 12, 10}, Sizes{3, 300, 257}),
                                            ::testing::Values(DType::f32, DType::bf16),
                                            ::testing::Values(Bf16Products::native, Bf16Products::converted)));

TEST(LinearBackend, RunsOnStreamsWithEqualBits) {
    const Values x = random_values(144 * 200, 1), w = random_values(96 * 200, 2);
    std::vector<unsigned char> first;
    for (int repeat = 0; repeat < 3; ++repeat) {
        Device device;
        Matrix dx(device, 144, 200, DType::f32, x), dw(device, 96, 200, DType::f32, w), y(device, 144, 96);
        device->linear_forward(*device.stream, y, dx, dw, {});
        if (repeat == 0) first = y.raw();
        EXPECT_EQ(first, y.raw());
    }
}

TEST(LinearBackend, RowsOfZerosStayZero) {
    Device device;
    Values x = random_values(20 * 12, 1);
    std::fill(x.begin() + 17 * 12, x.end(), 0.0);
    Matrix dx(device, 20, 12, DType::f32, x), dw(device, 131, 12, DType::f32, random_values(131 * 12, 2)), y(device, 20, 131);
    device->linear_forward(*device.stream, y, dx, dw, {});
    const Values result = y.read();
    for (std::size_t i = 17 * 131; i < result.size(); ++i) ASSERT_EQ(result[i], 0.0);
    EXPECT_NE(result[0], 0.0);
}

TEST(LinearBackend, ShapesThatDoNotFitAreNamed) {
    Device device;
    Matrix x(device, 4, 5), w(device, 3, 6), y(device, 4, 3);
    try {
        device->linear_forward(*device.stream, y, x, w, {});
        FAIL() << "accepted";
    } catch (const DeviceError& error) {
        EXPECT_NE(std::string(error.what()).find("inputs [4, 5] fp32, weights [3, 6] fp32"), std::string::npos) << error.what();
    }
    Matrix fitting(device, 3, 5), short_bias(device, 1, 2), narrow_bias(device, 1, 3, DType::bf16);
    for (const Matrix* bias : {&short_bias, &narrow_bias})
        EXPECT_THROW(device->linear_forward(*device.stream, y, x, fitting, *bias), DeviceError);
}

}  // namespace
}  // namespace sherd::testing
