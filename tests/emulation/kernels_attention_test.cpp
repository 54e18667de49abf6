/// Attention kernels, on tensor cores and without, against plain loops in double and the CPU backend: documents that end in the middle of
/// tiles, empty ones, windows, groups of heads, head sizes from 2 to 256, as devices of several kinds would run them.
#include "backend/cuda/attention.hpp"
#include "kernels_testing.hpp"

#include "sherd/runtime/error.hpp"

namespace sherd::cuda::testing {
namespace {

constexpr DeviceLimits hopper{90, 227 << 10, 228 << 10}, ada{89, 99 << 10, 100 << 10}, ampere{80, 163 << 10, 164 << 10},
    turing{75, 64 << 10, 64 << 10}, volta{70, 96 << 10, 96 << 10};

struct Case {
    std::string name;
    std::vector<std::int64_t> lengths;
    std::int64_t surplus, heads, kv_heads, head_dim;
    DType type;
    DeviceLimits limits = hopper;
    std::int64_t window = 0, shift = 0;

    std::int64_t rows() const {
        std::int64_t total = surplus;
        for (const auto length : lengths) total += length;
        return total;
    }
    std::vector<std::int32_t> offsets() const {
        std::vector<std::int32_t> at{0};
        for (const auto length : lengths) at.push_back(at.back() + static_cast<std::int32_t>(length));
        return at;
    }
    AttentionShape shape() const {
        return {heads, kv_heads, head_dim, static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim))), window};
    }
    std::int64_t longest() const { return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end()); }
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
    return out << c.name;
}

struct Inputs {
    Values q, k, v, dout;
    explicit Inputs(const Case& c)
        : q(random_values(c.rows() * c.heads * c.head_dim, 1, c.type, 1.5)),
          k(random_values(c.rows() * c.kv_heads * c.head_dim, 2, c.type, 1.5)),
          v(random_values(c.rows() * c.kv_heads * c.head_dim, 3, c.type)),
          dout(random_values(c.rows() * c.heads * c.head_dim, 4, c.type)) {}
};

struct Results {
    Values out, lse, dq, dk, dv;
};

/// The definition, in double; surplus rows stay zero.
Results reference(const Case& c, const Inputs& in) {
    const std::int64_t d = c.head_dim, group = c.heads / c.kv_heads;
    const double scale = static_cast<double>(c.shape().scale);
    Results r{Values(in.q.size()), Values(static_cast<std::size_t>(c.heads * c.rows())), Values(in.q.size()), Values(in.k.size()),
              Values(in.k.size())};
    const auto offsets = c.offsets();
    const auto q_at = [&](std::int64_t row, std::int64_t head) { return static_cast<std::size_t>((row * c.heads + head) * d); };
    const auto k_at = [&](std::int64_t row, std::int64_t head) { return static_cast<std::size_t>((row * c.kv_heads + head / group) * d); };
    const auto dot = [&](const Values& a, std::size_t i, const Values& b, std::size_t j) {
        double sum = 0;
        for (std::size_t e = 0; e < static_cast<std::size_t>(d); ++e) sum += a[i + e] * b[j + e];
        return sum;
    };
    const auto add = [&](Values& to, std::size_t i, double factor, const Values& from, std::size_t j) {
        for (std::size_t e = 0; e < static_cast<std::size_t>(d); ++e) to[i + e] += factor * from[j + e];
    };
    for (std::size_t n = 0; n < c.lengths.size(); ++n) {
        for (std::int64_t h = 0; h < c.heads; ++h) {
            for (std::int64_t i = offsets[n]; i < offsets[n + 1]; ++i) {
                const std::int64_t begin = c.window > 0 ? std::max<std::int64_t>(offsets[n], i - c.window + 1) : offsets[n];
                Values p;
                for (std::int64_t j = begin; j <= i; ++j) p.push_back(dot(in.q, q_at(i, h), in.k, k_at(j, h)) * scale);
                const double top = *std::max_element(p.begin(), p.end());
                double total = 0;
                for (double& x : p) total += x = std::exp(x - top);
                r.lse[static_cast<std::size_t>(h * c.rows() + i)] = top + std::log(total);
                for (std::int64_t j = begin; j <= i; ++j) {
                    add(r.out, q_at(i, h), p[static_cast<std::size_t>(j - begin)] /= total, in.v, k_at(j, h));
                }
                const double delta = dot(in.dout, q_at(i, h), r.out, q_at(i, h));
                for (std::int64_t j = begin; j <= i; ++j) {
                    const double weight = p[static_cast<std::size_t>(j - begin)];
                    const double ds = weight * (dot(in.dout, q_at(i, h), in.v, k_at(j, h)) - delta) * scale;
                    add(r.dq, q_at(i, h), ds, in.k, k_at(j, h));
                    add(r.dk, k_at(j, h), ds, in.q, q_at(i, h));
                    add(r.dv, k_at(j, h), weight, in.dout, q_at(i, h));
                }
            }
        }
    }
    return r;
}

Results on_gpu(const Case& c, const Inputs& in) {
    const std::int64_t rows = c.rows(), width = c.heads * c.head_dim, kv_width = c.kv_heads * c.head_dim;
    const auto results = in_all_orders([&](Stream& stream) {
        const Matrix q(stream, rows, width, c.type, in.q, c.shift), k(stream, rows, kv_width, c.type, in.k, c.shift);
        const Matrix v(stream, rows, kv_width, c.type, in.v, c.shift), dout(stream, rows, width, c.type, in.dout, c.shift);
        const Matrix out(stream, rows, width, c.type, c.shift), lse(stream, c.heads, rows, DType::f32);
        const Matrix dq(stream, rows, width, c.type, c.shift), dk(stream, rows, kv_width, c.type, c.shift);
        const Matrix dv(stream, rows, kv_width, c.type, c.shift);
        const Matrix scratch(stream, 1, attention_scratch(rows, c.shape()), DType::f32);
        const Integers offsets(stream, c.offsets());
        const Documents documents{offsets.data(), static_cast<std::int64_t>(c.lengths.size()), c.longest()};
        attention_forward(stream, c.limits, out, lse.floats(), q, k, v, documents, c.shape());
        attention_backward(stream, c.limits, dq, dk, dv, dout, out, lse.floats(), q, k, v, documents, c.shape(), scratch.floats());
        return std::vector<Bytes>{out.read(), lse.read(), dq.read(), dk.read(), dv.read()};
    });
    return {to_values(results[0], c.type), to_values(results[1], DType::f32), to_values(results[2], c.type), to_values(results[3], c.type),
            to_values(results[4], c.type)};
}

/// The largest error relative to the largest value, and the mean square of errors relative to that of values: a wrong factor, sign or key
/// shows in both. Values are of order one; where all are zero, as the gradients of a softmax over one key, errors of 0.05 units count.
void expect_close(const Values& actual, const Values& expected, double most, const std::string& what) {
    ASSERT_EQ(actual.size(), expected.size());
    double errors = 0, squares = 0;
    const double bound = most * std::max(largest(expected), 0.05);
    for (std::size_t i = 0; i < actual.size(); ++i) {
        ASSERT_FALSE(std::isnan(actual[i])) << what << "[" << i << "]";
        ASSERT_NEAR(actual[i], expected[i], bound) << what << "[" << i << "]";
        errors += (actual[i] - expected[i]) * (actual[i] - expected[i]);
        squares += expected[i] * expected[i];
    }
    EXPECT_LE(std::sqrt(errors), most * std::max(std::sqrt(squares), 0.05)) << what;
}

/// Rows of no document are exactly zero.
void expect_zero_surplus(const Case& c, const Values& actual, const std::string& what) {
    const std::size_t width = actual.size() / static_cast<std::size_t>(c.rows());
    for (std::size_t i = actual.size() - static_cast<std::size_t>(c.surplus) * width; i < actual.size(); ++i)
        ASSERT_EQ(actual[i], 0) << what;
}

class Attention : public ::testing::TestWithParam<Case> {};

TEST_P(Attention, ForwardAndBackwardAgreeWithTheDefinition) {
    const Case& c = GetParam();
    const Inputs in(c);
    const Results expected = reference(c, in), actual = on_gpu(c, in);
    // probabilities and their gradients are rounded to the type between the products
    const double bound = c.type == DType::f32 ? 4e-6 : 4 * rounding_of(c.type);
    expect_close(actual.out, expected.out, bound, "out");
    expect_close(actual.lse, expected.lse, 4e-6, "lse");
    expect_close(actual.dq, expected.dq, bound, "dq");
    expect_close(actual.dk, expected.dk, bound, "dk");
    expect_close(actual.dv, expected.dv, bound, "dv");
    expect_zero_surplus(c, actual.out, "out");
    expect_zero_surplus(c, actual.dq, "dq");
    expect_zero_surplus(c, actual.dk, "dk");
    expect_zero_surplus(c, actual.dv, "dv");
}

TEST_P(Attention, ForwardAgreesWithTheCpu) {
    const Case& c = GetParam();
    if (!on_cpu(c.type)) GTEST_SKIP() << "the CPU does not compute in fp16";
    const Inputs in(c);
    const std::int64_t rows = c.rows(), width = c.heads * c.head_dim, kv_width = c.kv_heads * c.head_dim;
    const HostMatrix q(rows, width, c.type, in.q), k(rows, kv_width, c.type, in.k), v(rows, kv_width, c.type, in.v);
    const HostMatrix host_out(rows, width, c.type), host_lse(c.heads, rows, DType::f32);
    const auto offsets = c.offsets();
    cpu::attention_forward(host_out, host_lse.floats(), q, k, v, {offsets.data(), static_cast<std::int64_t>(c.lengths.size()), c.longest()},
                           c.shape());
    Stream stream;
    const Matrix gq(stream, rows, width, c.type, in.q), gk(stream, rows, kv_width, c.type, in.k), gv(stream, rows, kv_width, c.type, in.v);
    const Matrix out(stream, rows, width, c.type), lse(stream, c.heads, rows, DType::f32);
    const Integers gpu_offsets(stream, offsets);
    attention_forward(stream, out, lse.floats(), gq, gk, gv, {gpu_offsets.data(), static_cast<std::int64_t>(c.lengths.size()), c.longest()},
                      c.shape());
    const double bound = c.type == DType::f32 ? 4e-6 : 4 * rounding_of(c.type);
    expect_close(to_values(out.read(), c.type), host_out.read(), bound, "out");
    expect_close(to_values(lse.read(), DType::f32), host_lse.read(), 4e-6, "lse");
}

constexpr DType f32 = DType::f32, bf16 = DType::bf16, f16 = DType::f16;
INSTANTIATE_TEST_SUITE_P(
    TensorCores, Attention,
    ::testing::Values(Case{"documents64", {1, 37, 0, 16, 90, 2}, 14, 4, 2, 64, bf16},
                      Case{"one_tile_and_a_row64", {129}, 0, 1, 1, 64, bf16}, Case{"window64", {150, 20}, 3, 2, 1, 64, f16, hopper, 40},
                      Case{"narrow_window64", {140}, 0, 1, 1, 64, bf16, hopper, 1},
                      Case{"documents128", {100, 0, 3, 65}, 8, 2, 1, 128, bf16}, Case{"ampere128", {70, 3}, 0, 3, 3, 128, bf16, ampere},
                      Case{"window128", {160}, 2, 1, 1, 128, bf16, hopper, 50}, Case{"ada128", {67, 10}, 5, 2, 2, 128, f16, ada},
                      Case{"turing128", {70, 5}, 4, 2, 1, 128, f16, turing}, Case{"turing64", {40, 5}, 4, 2, 1, 64, f16, turing},
                      Case{"dim256", {40, 33}, 7, 2, 1, 256, bf16, ampere}, Case{"dim8", {30, 5}, 1, 2, 1, 8, bf16},
                      Case{"dim80", {50, 5}, 1, 2, 1, 80, bf16}, Case{"dim48", {50, 5}, 9, 3, 3, 48, f16},
                      Case{"one_row", {1}, 0, 1, 1, 64, bf16}, Case{"dim200", {20}, 140, 1, 1, 200, f16}),
    [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(
    Simple, Attention,
    ::testing::Values(Case{"documents10", {1, 37, 0, 16, 40, 2}, 9, 4, 2, 10, f32}, Case{"dim64", {33, 32, 31}, 1, 2, 1, 64, f32},
                      Case{"window36", {80, 9}, 3, 3, 1, 36, f32, hopper, 20}, Case{"dim128", {50, 20}, 0, 2, 2, 128, f32},
                      Case{"dim256", {20, 3}, 20, 1, 1, 256, f32}, Case{"dim2", {40}, 0, 1, 1, 2, f32},
                      Case{"volta64", {40, 5}, 2, 2, 1, 64, f16, volta}, Case{"turing_bf16", {40, 5}, 2, 2, 1, 64, bf16, turing},
                      Case{"turing256", {70, 5}, 2, 2, 1, 256, f16, turing}, Case{"odd_pairs18", {40, 5}, 2, 2, 1, 18, bf16},
                      Case{"shifted", {40, 5}, 2, 2, 1, 64, bf16, hopper, 0, 1},
                      Case{"shifted_fp32", {40, 5}, 2, 1, 1, 32, f32, hopper, 0, 1}),
    [](const auto& info) { return info.param.name; });

TEST(AttentionLimits, NoDocumentsLeaveZeros) {
    for (const DType type : {f32, bf16}) {
        for (const bool empty : {false, true}) {
            Stream stream;
            const std::int64_t rows = 70, width = 64;
            const Matrix q(stream, rows, width, type, Values(70 * 64, 1.0)), dout(stream, rows, width, type, Values(70 * 64, 1.0));
            const Matrix out(stream, rows, width, type), dq(stream, rows, width, type), dk(stream, rows, width, type);
            const Matrix dv(stream, rows, width, type), lse(stream, 1, rows, DType::f32), scratch(stream, 1, rows, DType::f32);
            const Integers zeros(stream, {0, 0, 0});
            const Documents documents = empty ? Documents{zeros.data(), 2, 0} : Documents{};
            const AttentionShape shape{1, 1, 64, 0.125f};
            attention_forward(stream, hopper, out, lse.floats(), q, q, q, documents, shape);
            attention_backward(stream, hopper, dq, dk, dv, dout, out, lse.floats(), q, q, q, documents, shape, scratch.floats());
            for (const Matrix* m : {&out, &dq, &dk, &dv}) EXPECT_EQ(to_values(m->read(), type), Values(70 * 64, 0.0));
            EXPECT_EQ(to_values(lse.read(), DType::f32), Values(70, 0.0));
        }
    }
}

TEST(AttentionLimits, NoRowsAreNoWork) {
    Stream stream;
    attention_forward(stream, Tensor{nullptr, bf16, 0, 64}, nullptr, Tensor{nullptr, bf16, 0, 64}, {}, {}, {}, {1, 1, 64, 0.125f});
}

TEST(AttentionLimits, HeadsThatNoKernelTakesAreRefused) {
    Stream stream;
    const Tensor q{nullptr, bf16, 4, 258};
    EXPECT_THROW(attention_forward(stream, hopper, q, nullptr, q, q, q, {}, {1, 1, 258, 0.125f}), DeviceError);
    const Tensor odd{nullptr, f32, 4, 7};
    EXPECT_THROW(attention_forward(stream, hopper, odd, nullptr, odd, odd, odd, {}, {1, 1, 7, 0.125f}), DeviceError);
}

TEST(AttentionLimits, LargeScoresDoNotOverflow) {
    for (const DType type : {f32, bf16}) {
        Stream stream;
        const std::int64_t rows = 40;
        Values q0 = random_values(rows * 64, 1, type, 60.0), v0 = random_values(rows * 64, 2, type);
        const Matrix q(stream, rows, 64, type, q0), v(stream, rows, 64, type, v0), out(stream, rows, 64, type);
        const Matrix lse(stream, 1, rows, DType::f32);
        const Integers offsets(stream, {0, 40});
        attention_forward(stream, hopper, out, lse.floats(), q, q, v, {offsets.data(), 1, rows}, {1, 1, 64, 1.0f});
        // a row's product with itself, about 230,000, is far above all others: it alone counts
        const Values values = to_values(out.read(), type);
        for (std::size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(values[i], v0[i], 2 * rounding_of(type) * std::abs(v0[i])) << i;
    }
}

}  // namespace
}  // namespace sherd::cuda::testing
