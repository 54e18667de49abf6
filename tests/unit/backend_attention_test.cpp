/// Causal attention within documents, forward and backward, against plain loops in double.
#include "backend_testing.hpp"

#include "sherd/backend/backend.hpp"

#include <limits>

namespace sherd::testing {
namespace {

struct Case {
    std::vector<std::int64_t> lengths;
    std::int64_t surplus, heads, kv_heads, head_dim;
    DType type;
    std::int64_t window = 0;
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
    /// The first row that row i of a document from `first` on sees.
    std::int64_t seen_from(std::int64_t first, std::int64_t i) const { return window > 0 ? std::max(first, i - window + 1) : first; }
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
    for (const auto length : c.lengths) out << length << "_";
    return out << "surplus" << c.surplus << "_heads" << c.heads << "of" << c.kv_heads << "_dim" << c.head_dim << "_" << name_of(c.type)
               << "_window" << c.window;
}

/// The definition: out [rows, heads*d], surplus rows zero; lse too where asked for.
Values reference(const Case& c, const Values& q, const Values& k, const Values& v, Values* lse = nullptr) {
    const std::int64_t d = c.head_dim, group = c.heads / c.kv_heads;
    const double scale = static_cast<double>(c.shape().scale);
    Values out(q.size(), 0.0);
    if (lse != nullptr) lse->assign(static_cast<std::size_t>(c.heads * c.rows()), 0.0);
    const auto offsets = c.offsets();
    const auto at = [d](const Values& x, std::int64_t heads, std::int64_t row, std::int64_t head, std::int64_t i) {
        return x[static_cast<std::size_t>((row * heads + head) * d + i)];
    };
    for (std::size_t n = 0; n < c.lengths.size(); ++n) {
        for (std::int64_t h = 0; h < c.heads; ++h) {
            for (std::int64_t i = offsets[n]; i < offsets[n + 1]; ++i) {
                Values p;
                const std::int64_t begin = c.seen_from(offsets[n], i);
                for (std::int64_t j = begin; j <= i; ++j) {
                    double score = 0;
                    for (std::int64_t e = 0; e < d; ++e) score += at(q, c.heads, i, h, e) * at(k, c.kv_heads, j, h / group, e);
                    p.push_back(score * scale);
                }
                const double top = *std::max_element(p.begin(), p.end());
                double total = 0;
                for (auto& x : p) total += x = std::exp(x - top);
                if (lse != nullptr) (*lse)[static_cast<std::size_t>(h * c.rows() + i)] = top + std::log(total);
                for (std::int64_t j = begin; j <= i; ++j) {
                    for (std::int64_t e = 0; e < d; ++e) {
                        out[static_cast<std::size_t>((i * c.heads + h) * d + e)] +=
                            p[static_cast<std::size_t>(j - begin)] / total * at(v, c.kv_heads, j, h / group, e);
                    }
                }
            }
        }
    }
    return out;
}

struct Inputs {
    Values q, k, v, dout;
    explicit Inputs(const Case& c)
        : q(random_values(c.rows() * c.heads * c.head_dim, 1, 1.5, c.type)),
          k(random_values(c.rows() * c.kv_heads * c.head_dim, 2, 1.5, c.type)),
          v(random_values(c.rows() * c.kv_heads * c.head_dim, 3, 1.0, c.type)),
          dout(random_values(c.rows() * c.heads * c.head_dim, 4, 1.0, c.type)) {}  // surplus rows hold any numbers
};

struct Results {
    Values out, lse, dq, dk, dv;
    std::vector<unsigned char> bits;
};

Results run(const Case& c, const Inputs& in, int threads) {
    Device device(threads);
    const std::int64_t rows = c.rows(), wide = c.heads * c.head_dim, narrow = c.kv_heads * c.head_dim;
    Matrix q(device, rows, wide, c.type, in.q), k(device, rows, narrow, c.type, in.k), v(device, rows, narrow, c.type, in.v);
    Matrix dout(device, rows, wide, c.type, in.dout), out(device, rows, wide, c.type), lse(device, c.heads, rows);
    Matrix dq(device, rows, wide, c.type), dk(device, rows, narrow, c.type), dv(device, rows, narrow, c.type);
    Integers offsets(device, c.offsets());
    const std::int64_t longest = c.lengths.empty() ? 0 : *std::max_element(c.lengths.begin(), c.lengths.end());
    const Documents documents{offsets.data(), static_cast<std::int64_t>(c.lengths.size()), longest};
    const std::int64_t floats = device->attention_scratch(rows, longest, c.shape(), c.type);
    Matrix scratch(device, 1, floats + 1);  // aligned to floats, no more
    device->attention_forward(*device.stream, out, lse.floats(), q, k, v, documents, c.shape());
    device->attention_backward(*device.stream, dq, dk, dv, dout, out, lse.floats(), q, k, v, documents, c.shape(),
                               {scratch.floats() + 1, DType::f32, 1, floats});
    Results results{out.read(), lse.read(), dq.read(), dk.read(), dv.read(), {}};
    for (auto* m : {&out, &lse, &dq, &dk, &dv}) results.bits.insert(results.bits.end(), m->raw().begin(), m->raw().end());
    return results;
}

class Attention : public ::testing::TestWithParam<Case> {};

TEST_P(Attention, ForwardIsTheDefinition) {
    const Case c = GetParam();
    const Inputs in(c);
    const Results results = run(c, in, 2);
    Values lse;
    const Values out = reference(c, in.q, in.k, in.v, &lse);
    expect_near(results.out, out, c.type == DType::f32 ? 5e-6 : 4e-3, "out");
    expect_near(results.lse, lse, 2e-6, "lse");
}

TEST_P(Attention, BackwardIsTheDerivative) {
    const Case c = GetParam();
    const Inputs in(c);
    const Results results = run(c, in, 2);
    // bf16: outputs are rounded by up to 2^-9, and the rounding of `out` enters dq and dk
    const double tolerance = c.type == DType::f32 ? 2e-5 : 1e-2;
    const auto loss = [&](const Values& q, const Values& k, const Values& v) { return dot(in.dout, reference(c, q, k, v)); };
    expect_gradient([&](const Values& q) { return loss(q, in.k, in.v); }, in.q, results.dq, tolerance, "dq", 48);
    expect_gradient([&](const Values& k) { return loss(in.q, k, in.v); }, in.k, results.dk, tolerance, "dk", 48);
    expect_gradient([&](const Values& v) { return loss(in.q, in.k, v); }, in.v, results.dv, tolerance, "dv", 48);
}

TEST_P(Attention, SurplusRowsAreExactlyZero) {
    const Case c = GetParam();
    const Results results = run(c, Inputs(c), 2);
    for (const auto* x : {&results.out, &results.dq, &results.dk, &results.dv}) {
        const auto columns = static_cast<std::int64_t>(x->size()) / c.rows();
        for (auto at = x->end() - c.surplus * columns; at != x->end(); ++at) ASSERT_EQ(*at, 0.0);
    }
}

TEST_P(Attention, BitsDependOnNothingButTheInput) {
    const Case c = GetParam();
    const Inputs in(c);
    const auto bits = run(c, in, 1).bits;
    for (const int threads : {1, 2, 3}) EXPECT_EQ(bits, run(c, in, threads).bits) << threads << " threads";
}

INSTANTIATE_TEST_SUITE_P(Shapes, Attention,
                         ::testing::Values(Case{{1}, 0, 1, 1, 2, DType::f32}, Case{{1, 1, 7, 1}, 3, 4, 2, 12, DType::f32},
                                           Case{{17, 0, 33}, 2, 6, 2, 10, DType::f32}, Case{{63, 1, 64}, 0, 2, 1, 16, DType::f32},
                                           Case{{65, 5}, 10, 2, 2, 12, DType::f32}, Case{{130}, 14, 3, 1, 10, DType::f32},
                                           Case{{129, 80}, 1, 1, 1, 128, DType::f32}, Case{{96}, 0, 2, 2, 64, DType::f32},
                                           Case{{5, 66}, 9, 4, 2, 12, DType::bf16}, Case{{130, 1}, 5, 2, 1, 64, DType::bf16}),
                         [](const auto& instance) { return ::testing::PrintToString(instance.param); });

// windows of one row, shorter than a tile, across tiles, longer than the document
INSTANTIATE_TEST_SUITE_P(Windows, Attention,
                         ::testing::Values(Case{{9, 1}, 2, 2, 1, 4, DType::f32, 1}, Case{{17, 0, 33}, 2, 6, 2, 10, DType::f32, 5},
                                           Case{{130, 64}, 3, 3, 1, 10, DType::f32, 7}, Case{{129, 80}, 1, 1, 1, 128, DType::f32, 64},
                                           Case{{200}, 5, 4, 2, 12, DType::f32, 65}, Case{{63, 40}, 0, 2, 2, 16, DType::f32, 1000},
                                           Case{{130, 1}, 5, 2, 1, 64, DType::bf16, 33}),
                         [](const auto& instance) { return ::testing::PrintToString(instance.param); });

TEST(AttentionEdge, NoDocumentsAndNoRows) {
    Device device;
    const AttentionShape shape{2, 1, 4, 0.5f};
    Matrix q(device, 3, 8, DType::f32, Values(24, 1.0)), k(device, 3, 4, DType::f32, Values(12, 1.0)), out(device, 3, 8), lse(device, 2, 3);
    Integers offsets(device, {0});
    device->attention_forward(*device.stream, out, lse.floats(), q, k, k, {offsets.data(), 0, 0}, shape);
    EXPECT_EQ(out.read(), Values(24, 0.0));
    const Tensor none{nullptr, DType::f32, 0, 8}, none_kv{nullptr, DType::f32, 0, 4};
    device->attention_forward(*device.stream, none, nullptr, none, none_kv, none_kv, {offsets.data(), 0, 0}, shape);
    device->attention_backward(*device.stream, none, none_kv, none_kv, none, none, nullptr, none, none_kv, none_kv, {offsets.data(), 0, 0},
                               shape, {});
    EXPECT_NO_THROW(device->synchronize(*device.stream));
}

TEST(AttentionEdge, LargeScoresStayFinite) {
    const Case c{{70}, 0, 1, 1, 16, DType::f32};
    Inputs in(c);
    for (auto& x : in.q) x *= 100;  // scores of several hundred: exp of them would overflow
    const Results results = run(c, in, 2);
    expect_near(results.out, reference(c, in.q, in.k, in.v), 1e-4, "out");
}

TEST(AttentionEdge, NanReachesTheOutput) {
    const Case c{{70}, 0, 1, 1, 16, DType::f32};
    Inputs in(c);
    in.k[16 * 3] = std::numeric_limits<double>::quiet_NaN();  // key 3: every query from 3 on sees it
    const Results results = run(c, in, 2);
    EXPECT_FALSE(std::isnan(results.out[16 * 2]));
    for (std::size_t i = 3; i < 70; ++i) EXPECT_TRUE(std::isnan(results.out[16 * i])) << i;
}

}  // namespace
}  // namespace sherd::testing
