/// Operations on whole rows: RMSNorm, embedding, cross entropy.
#include "backend_testing.hpp"

#include "sherd/backend/backend.hpp"
#include "sherd/runtime/error.hpp"

#include <array>
#include <limits>

namespace sherd::testing {
namespace {

class Rows : public ::testing::TestWithParam<DType> {
  protected:
    DType type = GetParam();
    double tolerance = type == DType::f32 ? 2e-6 : 5e-3;
};
INSTANTIATE_TEST_SUITE_P(Types, Rows, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& instance) { return std::string(name_of(instance.param)); });

constexpr double epsilon = 1e-5;

Values rms_norm(const Values& x, const Values& w, Values* rstd = nullptr) {
    const std::size_t n = w.size();
    Values y(x.size());
    for (std::size_t t = 0; t * n < x.size(); ++t) {
        double squares = 0;
        for (std::size_t c = 0; c < n; ++c) squares += x[t * n + c] * x[t * n + c];
        const double factor = 1 / std::sqrt(squares / static_cast<double>(n) + epsilon);
        if (rstd != nullptr) rstd->push_back(factor);
        for (std::size_t c = 0; c < n; ++c) y[t * n + c] = x[t * n + c] * factor * w[c];
    }
    return y;
}

TEST_P(Rows, RmsNormForwardWithAndWithoutDelta) {
    for (const auto& [rows, n] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {5, 12}, {33, 131}, {70, 300}}) {
        Device device;
        const Values x = random_values(rows * n, 1, 1.0, type), delta = random_values(rows * n, 2, 0.5, type);
        const Values w = random_values(n, 3, 1.0, type);
        Matrix mx(device, rows, n, type, x), md(device, rows, n, type, delta), mw(device, 1, n, type, w), y(device, rows, n, type);
        Matrix sum(device, rows, n, type), rstd(device, 1, rows), again(device, rows, n, type);
        device->rms_norm_forward(*device.stream, y, rstd.floats(), {}, mx, {}, mw, static_cast<float>(epsilon));
        Values expected_rstd;
        expect_near(y.read(), rms_norm(x, w, &expected_rstd), tolerance, "y");
        expect_near(rstd.read(), expected_rstd, 1e-6, "rstd");

        device->rms_norm_forward(*device.stream, y, rstd.floats(), sum, mx, md, mw, static_cast<float>(epsilon));
        Values added = x;
        for (std::size_t i = 0; i < x.size(); ++i) added[i] += delta[i];
        const Values rounded = sum.read();  // the statistics are those of the rounded sum
        expect_near(rounded, added, type == DType::f32 ? 1e-7 : 4e-3, "sum");
        expected_rstd.clear();
        expect_near(y.read(), rms_norm(rounded, w, &expected_rstd), tolerance, "y of the sum");
        expect_near(rstd.read(), expected_rstd, 1e-6, "rstd of the sum");
        device->rms_norm_again(*device.stream, again, sum, rstd.floats(), mw);
        EXPECT_EQ(again.raw(), y.raw());
        device->rms_norm_forward(*device.stream, y, rstd.floats(), mx, mx, md, mw, static_cast<float>(epsilon));  // sum is x
        EXPECT_EQ(mx.raw(), sum.raw());
        EXPECT_EQ(again.raw(), y.raw());
    }
}

TEST_P(Rows, RmsNormBackwardIsTheDerivativeAndAccumulates) {
    for (const auto& [rows, n] : {std::pair<std::int64_t, std::int64_t>{1, 2}, {5, 12}, {70, 131}}) {
        const Values x = random_values(rows * n, 1, 1.0, type), w = random_values(n, 3, 1.0, type),
                     dy = random_values(rows * n, 4, 1.0, type);
        const Values start = random_values(n, 6);
        std::vector<unsigned char> bits;
        for (const int threads : {1, 2, 3}) {
            Device device(threads);
            Matrix mx(device, rows, n, type, x), mw(device, 1, n, type, w), y(device, rows, n, type), rstd(device, 1, rows);
            Matrix mdy(device, rows, n, type, dy), dx(device, rows, n, type, Values(x.size(), 0.0)), dw(device, 1, n, DType::f32, start);
            Matrix scratch(device, 1, device->rms_norm_scratch(rows, n));
            device->rms_norm_forward(*device.stream, y, rstd.floats(), {}, mx, {}, mw, static_cast<float>(epsilon));
            device->rms_norm_backward(*device.stream, dx, dw.floats(), mdy, mx, rstd.floats(), mw, scratch.floats(), true);
            Values added = dw.read();
            for (std::size_t i = 0; i < added.size(); ++i) added[i] -= start[i];
            expect_gradient([&](const Values& v) { return dot(dy, rms_norm(x, v)); }, w, added, 1e-5, "dw", 200);
            expect_gradient([&](const Values& v) { return dot(dy, rms_norm(v, w)); }, x, dx.read(), type == DType::f32 ? 1e-5 : 5e-3, "dx",
                            200);
            // without accumulate what is there plays no role
            Matrix fresh(device, rows, n, type, Values(x.size(), std::nan(""))), other_dw(device, 1, n, DType::f32, start);
            device->rms_norm_backward(*device.stream, fresh, other_dw.floats(), mdy, mx, rstd.floats(), mw, scratch.floats(), false);
            EXPECT_EQ(fresh.raw(), dx.raw());
            EXPECT_EQ(other_dw.raw(), dw.raw());
            // a second pass adds the same again
            const Values once = dx.read();
            device->rms_norm_backward(*device.stream, dx, dw.floats(), mdy, mx, rstd.floats(), mw, scratch.floats(), true);
            Values twice = once;
            for (auto& v : twice) v *= 2;
            expect_near(dx.read(), twice, type == DType::f32 ? 1e-6 : 6e-3, "dx twice");
            auto here = dx.raw();
            here.insert(here.end(), dw.raw().begin(), dw.raw().end());
            if (threads == 1) bits = here;
            EXPECT_EQ(bits, here) << threads << " threads";
        }
    }
}

TEST(RowsEdge, ZeroRowsOfRmsNormStayZero) {
    Device device;
    Matrix x(device, 2, 12, DType::f32, Values(24, 0.0)), w(device, 1, 12, DType::f32, random_values(12, 1)), y(device, 2, 12);
    Matrix rstd(device, 1, 2), dx(device, 2, 12), dw(device, 1, 12, DType::f32, Values(12, 0.0));
    Matrix scratch(device, 1, device->rms_norm_scratch(2, 12));
    device->rms_norm_forward(*device.stream, y, rstd.floats(), {}, x, {}, w, 1e-6f);
    device->rms_norm_backward(*device.stream, dx, dw.floats(), x, x, rstd.floats(), w, scratch.floats(), false);
    EXPECT_EQ(y.read(), Values(24, 0.0));
    EXPECT_EQ(dx.read(), Values(24, 0.0));
    EXPECT_EQ(dw.read(), Values(12, 0.0));
}

TEST(RowsEdge, NoRows) {
    Device device;
    const Tensor none{nullptr, DType::f32, 0, 12};
    Matrix w(device, 1, 12, DType::f32, Values(12, 1.0)), dw(device, 1, 12, DType::f32, Values(12, 1.0));
    Matrix table(device, 131, 12, DType::f32, Values(131 * 12, 1.0));
    device->rms_norm_forward(*device.stream, none, nullptr, {}, none, {}, w, 1e-6f);
    device->rms_norm_backward(*device.stream, none, dw.floats(), none, none, nullptr, w, nullptr, false);
    device->embedding_forward(*device.stream, none, table, nullptr);
    device->embedding_backward(*device.stream, table, none, nullptr);
    device->cross_entropy(*device.stream, nullptr, none, none, nullptr, 1.0f);
    EXPECT_NO_THROW(device->synchronize(*device.stream));
    EXPECT_EQ(dw.read(), Values(12, 1.0));
    EXPECT_EQ(table.read(), Values(131 * 12, 1.0));
}

TEST_P(Rows, GradientOfABias) {
    for (const auto& [rows, surplus, n] : {std::array<std::int64_t, 3>{1, 0, 1}, {7, 2, 12}, {131, 5, 1301}}) {
        const std::int64_t all = rows + surplus;
        const Values bias = random_values(n, 2, 1.0, type), start = random_values(n, 3);
        const Values dy = random_values(all * n, 4, 1.0, type);
        const auto biased = [&, count = rows * n, width = n](const Values& b) {
            Values sum(dy.size(), 0.0);
            for (std::int64_t i = 0; i < count; ++i) sum[static_cast<std::size_t>(i)] += b[static_cast<std::size_t>(i % width)];
            return sum;
        };
        std::vector<unsigned char> bits;
        for (const int threads : {1, 2, 3}) {
            Device device(threads);
            Matrix db(device, 1, n, DType::f32, start), mdy(device, all, n, type, dy);
            Tensor real = mdy;
            real.rows = rows;
            device->bias_backward(*device.stream, db.floats(), real);
            Values gradient = db.read();
            for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] -= start[i];
            expect_gradient([&](const Values& b) { return dot(dy, biased(b)); }, bias, gradient, 4e-6, "dbias");
            if (!bits.empty()) {
                EXPECT_EQ(db.raw(), bits) << threads << " threads";
            }
            bits = db.raw();
        }
    }
}

TEST_P(Rows, EmbeddingForwardAndBackward) {
    const std::int64_t vocabulary = 131, n = 200, rows = 50;
    std::vector<std::int32_t> tokens;
    for (std::int32_t t = 0; t < rows; ++t) tokens.push_back(t % 7 == 6 ? -1 : (t * 37) % (t % 3 == 0 ? 5 : 131));  // many repeats
    const Values table = random_values(vocabulary * n, 1, 1.0, type), dy = random_values(rows * n, 2, 1.0, type);
    const Values start = random_values(vocabulary * n, 3);
    Values expected(static_cast<std::size_t>(rows * n), 0.0);
    std::vector<float> sums(start.begin(), start.end());
    for (std::int64_t t = 0; t < rows; ++t) {
        const std::int64_t id = tokens[static_cast<std::size_t>(t)];
        for (std::int64_t c = 0; id >= 0 && c < n; ++c) {
            expected[static_cast<std::size_t>(t * n + c)] = table[static_cast<std::size_t>(id * n + c)];
            sums[static_cast<std::size_t>(id * n + c)] += static_cast<float>(dy[static_cast<std::size_t>(t * n + c)]);
        }
    }
    for (const int threads : {1, 2, 3}) {
        Device device(threads);
        Integers ids(device, tokens);
        Matrix m(device, vocabulary, n, type, table), y(device, rows, n, type), d(device, rows, n, type, dy);
        Matrix dtable(device, vocabulary, n, DType::f32, start);
        device->embedding_forward(*device.stream, y, m, ids.data());
        device->embedding_backward(*device.stream, dtable, d, ids.data());
        EXPECT_EQ(y.read(), expected);
        EXPECT_EQ(dtable.read(), Values(sums.begin(), sums.end()));  // rising t: the very sums of fp32 in that order
    }
}

TEST(RowsEdge, TokensOutsideTheModelAreNamed) {
    Device device;
    Integers ids(device, {0, 130, 131});
    Matrix table(device, 131, 4, DType::f32, Values(131 * 4, 1.0)), y(device, 3, 4), logits(device, 3, 131), loss(device, 1, 3);
    device->embedding_forward(*device.stream, y, table, ids.data());
    try {
        device->synchronize(*device.stream);
        FAIL() << "accepted";
    } catch (const InputError& error) {
        EXPECT_NE(std::string(error.what()).find("row 2 of the micro-batch holds token id 131"), std::string::npos) << error.what();
    }
    device->embedding_backward(*device.stream, table, y, ids.data());
    EXPECT_THROW(device->synchronize(*device.stream), InputError);
    device->cross_entropy(*device.stream, loss.floats(), {}, logits, ids.data(), 1.0f);
    EXPECT_THROW(device->synchronize(*device.stream), InputError);
}

double row_loss(const Values& x, std::size_t first, std::size_t n, std::int32_t target) {
    if (target < 0) return 0;
    const auto begin = x.begin() + static_cast<std::ptrdiff_t>(first);
    const double top = *std::max_element(begin, begin + static_cast<std::ptrdiff_t>(n));
    double total = 0;
    for (std::size_t c = 0; c < n; ++c) total += std::exp(x[first + c] - top);
    return std::log(total) + top - x[first + static_cast<std::size_t>(target)];
}

TEST_P(Rows, CrossEntropyAndItsGradient) {
    for (const std::int64_t n : {1, 2, 131, 4099}) {
        const std::int64_t rows = 5;
        const auto columns = static_cast<std::size_t>(n);
        Values x = random_values(rows * n, 1, 4.0);
        for (std::size_t c = 0; c < columns; ++c) x[columns + c] += 300;  // row 1: exp alone would overflow
        for (std::size_t c = 0; c < columns; ++c) x[2 * columns + c] -= 300;
        for (auto& value : x) value = static_cast<double>(static_cast<float>(value));
        const std::vector<std::int32_t> targets{0, static_cast<std::int32_t>(n - 1), static_cast<std::int32_t>(n / 2), -1, 0};
        const double scale = 0.37;
        Device device;
        Integers ids(device, targets);
        Matrix logits(device, rows, n, DType::f32, x), in_place(device, rows, n, DType::f32, x), alone(device, rows, n, DType::f32, x);
        Matrix gradient(device, rows, n, type), loss(device, 1, rows), loss2(device, 1, rows), loss3(device, 1, rows);
        device->cross_entropy(*device.stream, loss.floats(), gradient, logits, ids.data(), static_cast<float>(scale));
        device->cross_entropy(*device.stream, loss2.floats(), in_place, in_place, ids.data(), static_cast<float>(scale));
        device->cross_entropy(*device.stream, loss3.floats(), {}, alone, ids.data(), static_cast<float>(scale));
        const Values losses = loss.read();
        for (std::size_t t = 0; t < 5; ++t) {
            const double expected = row_loss(x, t * columns, columns, targets[t]);
            EXPECT_NEAR(losses[t], expected, 1.5e-7 * std::max(1.0, expected)) << "row " << t << " of " << n;
        }
        EXPECT_EQ(loss2.raw(), loss.raw());
        EXPECT_EQ(loss3.raw(), loss.raw());
        const Values d = gradient.read(), d32 = in_place.read();
        for (std::size_t c = 0; c < columns; ++c) EXPECT_EQ(d[3 * columns + c], 0.0);
        if (n == 1) continue;  // no gradient at all
        const auto total = [&](const Values& v) {
            double sum = 0;
            for (std::size_t t = 0; t < 5; ++t) sum += scale * row_loss(v, t * columns, columns, targets[t]);
            return sum;
        };
        expect_gradient(total, x, d32, 1e-6, "gradient in place", 400);
        expect_near(d, d32, type == DType::f32 ? 0.0 : 4e-3, "gradient");
    }
}

TEST(RowsEdge, CrossEntropyOfNanIsNan) {
    Device device;
    Values x = random_values(2 * 131, 1);
    x[5] = std::numeric_limits<double>::quiet_NaN();
    x[131 + 5] = std::numeric_limits<double>::infinity();
    Integers ids(device, {3, 3});
    Matrix logits(device, 2, 131, DType::f32, x), loss(device, 1, 2);
    device->cross_entropy(*device.stream, loss.floats(), {}, logits, ids.data(), 1.0f);
    for (const double value : loss.read()) EXPECT_FALSE(std::isfinite(value));
}

}  // namespace
}  // namespace sherd::testing
