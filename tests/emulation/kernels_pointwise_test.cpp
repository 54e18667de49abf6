/// Elementwise kernels and AdamW against plain loops in double and the CPU backend: sizes that no vector divides, addresses that are no
/// multiples of 16 bytes, three orders of threads.
#include "kernels_testing.hpp"

namespace sherd::cuda::testing {
namespace {

constexpr std::int64_t sizes[] = {0, 1, 7, 31, 33, 1027, 2053};

/// Elements before what is written and before what is read. 4: chunks of 16-bit numbers begin at multiples of 8 bytes.
struct Shifts {
    std::int64_t to, from;
};
constexpr Shifts shifts[] = {{0, 0}, {1, 0}, {0, 1}, {4, 4}};

std::string where(std::int64_t n, DType type, std::int64_t shift) {
    return std::to_string(n) + " of " + std::string(name_of(type)) + ", shifted by " + std::to_string(shift);
}

/// run(stream, n) for all sizes, on one stream for each order of threads.
template <class Run>
std::vector<Bytes> of_all_sizes(const Run& run) {
    return in_all_orders([&](Stream& stream) {
        std::vector<Bytes> results;
        for (const std::int64_t n : sizes) results.push_back(run(stream, n));
        return results;
    });
}

TEST(Cast, RoundsToNearestEvenBetweenAllTypes) {
    for (const DType from : all_types) {
        for (const DType to : all_types) {
            for (const Shifts& shift : shifts) {
                const auto results = of_all_sizes([&](Stream& stream, std::int64_t n) {
                    const Matrix x(stream, 1, n, from, random_values(n, 1, from), shift.from), y(stream, 1, n, to, shift.to);
                    cast(stream, y, x);
                    return y.read();
                });
                for (std::size_t i = 0; i < std::size(sizes); ++i)
                    EXPECT_EQ(results[i], to_bytes(random_values(sizes[i], 1, from), to)) << where(sizes[i], from, shift.from);
            }
        }
    }
}

TEST(Cast, KeepsWhatIsNotFinite) {
    Stream stream;
    const Values values{INFINITY, -INFINITY, 1e38, 70000.0, NAN, 0.0, -0.0, 1.0};
    const Matrix x(stream, 1, 8, DType::f32, values), half(stream, 1, 8, DType::f16), wide(stream, 1, 8, DType::bf16);
    cast(stream, half, x);
    cast(stream, wide, x);
    const Values h = to_values(half.read(), DType::f16), b = to_values(wide.read(), DType::bf16);
    EXPECT_EQ(h[0], INFINITY);
    EXPECT_EQ(h[1], -INFINITY);
    EXPECT_EQ(h[3], INFINITY);
    EXPECT_TRUE(std::isnan(h[4]) && std::isnan(b[4]));
    EXPECT_EQ(b[0], INFINITY);
    EXPECT_TRUE(std::isfinite(b[2]));
    EXPECT_TRUE(std::signbit(h[6]) && std::signbit(b[6]));
}

/// Numbers for y += x, or y = 0 + x where y is NaN before, which must not be read then.
struct Addition {
    Values y, x, sum;
    Addition(std::int64_t n, DType type, DType added, bool accumulate)
        : y(random_values(n, 2, type)), x(random_values(n, 3, added)), sum(y.size()) {
        if (n > 0) y[0] = x[0] = -0.0;  // whose sum is -0, but 0 from 0 on
        if (!accumulate) y.assign(y.size(), NAN);
        for (std::size_t i = 0; i < sum.size(); ++i)
            sum[i] = static_cast<double>((accumulate ? static_cast<float>(y[i]) : 0.0f) + static_cast<float>(x[i]));
    }
};

void check_add(DType type, DType added, const Shifts& shift, bool accumulate) {
    const auto results = of_all_sizes([&](Stream& stream, std::int64_t n) {
        const Addition in(n, type, added, accumulate);
        const Matrix y(stream, 1, n, type, in.y, shift.to), x(stream, 1, n, added, in.x, shift.from);
        add(stream, y, x, accumulate);
        return y.read();
    });
    for (std::size_t i = 0; i < std::size(sizes); ++i) {
        const std::int64_t n = sizes[i];
        const Addition in(n, type, added, accumulate);
        const std::string what = where(n, type, shift.to) + (accumulate ? " += " : " = ") + std::string(name_of(added));
        EXPECT_EQ(results[i], to_bytes(in.sum, type)) << what;
        if (!on_cpu(type)) continue;
        const HostMatrix y(1, n, type, in.y), x(1, n, added, in.x);
        cpu::add(y, x, accumulate);
        EXPECT_EQ(to_bytes(y.read(), type), results[i]) << what << ", on the CPU";
    }
}

TEST(Add, RoundsTheSum) {
    for (const DType type : all_types) {
        for (const DType added : all_types) {
            for (const Shifts& shift : shifts) {
                for (const bool accumulate : {false, true}) check_add(type, added, shift, accumulate);
            }
        }
    }
}

TEST(SwiGlu, ForwardAndBackwardAgreeWithTheDefinition) {
    for (const DType type : all_types) {
        for (const std::int64_t n : sizes) {
            const std::int64_t shift = n == 33 ? 1 : 0;
            const Values g = random_values(n, 4, type, 2.0), u = random_values(n, 5, type), d = random_values(n, 6, type);
            const auto results = in_all_orders([&](Stream& stream) {
                const Matrix gate(stream, 1, n, type, g, shift), up(stream, 1, n, type, u, shift), dout(stream, 1, n, type, d, shift);
                const Matrix out(stream, 1, n, type, shift);
                swiglu_forward(stream, out, gate, up);
                swiglu_backward(stream, gate, up, dout);
                return std::vector<Bytes>{out.read(), gate.read(), up.read(), dout.read()};
            });
            Values out(g.size()), dgate(g.size()), dup(g.size());
            for (std::size_t i = 0; i < g.size(); ++i) {
                const double s = 1 / (1 + std::exp(-g[i]));
                out[i] = g[i] * s * u[i];
                dgate[i] = d[i] * u[i] * s * (1 + g[i] * (1 - s));
                dup[i] = d[i] * g[i] * s;
            }
            expect_near(to_values(results[0], type), out, type, 2e-6, where(n, type, shift));
            expect_near(to_values(results[1], type), dgate, type, 2e-6, where(n, type, shift));
            expect_near(to_values(results[2], type), dup, type, 2e-6, where(n, type, shift));
            EXPECT_EQ(results[3], results[0]) << "the output of the forward pass comes again";
            if (!on_cpu(type) || n == 0) continue;
            const HostMatrix gate(1, n, type, g), up(1, n, type, u), host_out(1, n, type);
            cpu::swiglu_forward(host_out, gate, up);
            expect_near(to_values(results[0], type), host_out.read(), type, 1e-2 * rounding_of(type) + 2e-6 + rounding_of(type), "CPU");
        }
    }
}

TEST(SwiGlu, SaturatesWithoutNaN) {
    Stream stream;
    const Matrix gate(stream, 1, 4, DType::f32, {-200.0, 200.0, -1e30, 88.5}), up(stream, 1, 4, DType::f32, {1.0, 1.0, 1.0, 2.0});
    const Matrix out(stream, 1, 4, DType::f32);
    swiglu_forward(stream, out, gate, up);
    const Values values = to_values(out.read(), DType::f32);
    EXPECT_EQ(std::abs(values[0]), 0.0);
    EXPECT_EQ(values[1], 200.0);
    EXPECT_EQ(std::abs(values[2]), 0.0);
    EXPECT_EQ(values[3], 177.0);
}

struct RopeCase {
    std::int64_t rows, heads, head_dim, shift;
};

TEST(Rope, TurnsHalvesTogetherAndBack) {
    for (const DType type : all_types) {
        for (const RopeCase& c : {RopeCase{0, 2, 8, 0}, RopeCase{1, 1, 2, 0}, RopeCase{3, 5, 10, 0}, RopeCase{7, 9, 64, 0},
                                  RopeCase{5, 6, 128, 0}, RopeCase{5, 3, 32, 1}, RopeCase{2, 37, 80, 0}, RopeCase{50, 9, 64, 0}}) {
            const std::int64_t half = c.head_dim / 2, width = c.heads * c.head_dim, places = 11;
            const Values x0 = random_values(c.rows * width, 7, type);
            Values cosine, sine;
            for (std::int64_t p = 0; p < places; ++p) {
                for (std::int64_t i = 0; i < half; ++i) {
                    const double angle = static_cast<double>(p) * std::pow(1e4, -static_cast<double>(i) / static_cast<double>(half));
                    cosine.push_back(static_cast<double>(static_cast<float>(std::cos(angle))));
                    sine.push_back(static_cast<double>(static_cast<float>(std::sin(angle))));
                }
            }
            std::vector<std::int32_t> positions;
            for (std::int64_t t = 0; t < c.rows; ++t) positions.push_back(static_cast<std::int32_t>(t * 7 % places));
            for (const bool inverse : {false, true}) {
                const auto results = in_all_orders([&](Stream& stream) {
                    const Matrix x(stream, c.rows, width, type, x0, c.shift), co(stream, places, half, DType::f32, cosine),
                        si(stream, places, half, DType::f32, sine);
                    const Integers at(stream, positions);
                    rope(stream, x, c.heads, co.floats(), si.floats(), at.data(), inverse);
                    return std::vector<Bytes>{x.read()};
                });
                Values expected(x0.size());
                for (std::int64_t t = 0; t < c.rows; ++t) {
                    for (std::int64_t h = 0; h < c.heads; ++h) {
                        for (std::int64_t i = 0; i < half; ++i) {
                            const auto low = static_cast<std::size_t>(t * width + h * c.head_dim + i),
                                       high = low + static_cast<std::size_t>(half);
                            const auto angle = static_cast<std::size_t>(positions[static_cast<std::size_t>(t)] * half + i);
                            const double s = inverse ? -sine[angle] : sine[angle];
                            expected[low] = x0[low] * cosine[angle] - x0[high] * s;
                            expected[high] = x0[high] * cosine[angle] + x0[low] * s;
                        }
                    }
                }
                expect_near(to_values(results[0], type), expected, type, 1e-6, "rope of " + std::to_string(c.head_dim));
                if (!on_cpu(type) || c.rows == 0) continue;
                const HostMatrix x(c.rows, width, type, x0), co(places, half, DType::f32, cosine), si(places, half, DType::f32, sine);
                cpu::rope(x, c.heads, co.floats(), si.floats(), positions.data(), inverse);
                expect_near(to_values(results[0], type), x.read(), type, 1e-6 + rounding_of(type), "rope on the CPU");
            }
        }
    }
}

TEST(AdamW, StepsAsTheCpu) {
    const AdamWStep step{3e-3, 0.9, 0.999, 1e-8, 0.1, 1 - std::pow(0.9, 3), 1 - std::pow(0.999, 3), 0.5};
    for (const DType type : all_types) {
        for (const std::int64_t n : {std::int64_t{0}, std::int64_t{1}, std::int64_t{33}, std::int64_t{2051}}) {
            for (const std::int64_t shift : {0, 1}) {
                const Values p0 = random_values(n, 8), m0 = random_values(n, 9, DType::f32, 0.1), g0 = random_values(n, 10);
                Values v0 = random_values(n, 11, DType::f32, 0.1);
                for (double& v : v0) v = v * v;
                for (double& v : v0) v = static_cast<double>(static_cast<float>(v));
                const auto results = in_all_orders([&](Stream& stream) {
                    const Matrix p(stream, 1, n, DType::f32, p0, shift), m(stream, 1, n, DType::f32, m0, shift);
                    const Matrix v(stream, 1, n, DType::f32, v0, shift), g(stream, 1, n, DType::f32, g0, shift);
                    const Matrix weights(stream, 1, n, type, shift);
                    adamw(stream, step, p.floats(), m.floats(), v.floats(), g.floats(), weights, n);
                    return std::vector<Bytes>{p.read(), m.read(), v.read(), weights.read()};
                });
                Values p1(p0.size()), m1(p0.size()), v1(p0.size());
                for (std::size_t i = 0; i < p0.size(); ++i) {
                    const double g = g0[i] * step.gradient_scale;
                    m1[i] = step.beta1 * m0[i] + (1 - step.beta1) * g;
                    v1[i] = step.beta2 * v0[i] + (1 - step.beta2) * g * g;
                    p1[i] = p0[i] * (1 - step.learning_rate * step.weight_decay) -
                            step.learning_rate * (m1[i] / step.bias1) / (std::sqrt(v1[i] / step.bias2) + step.epsilon);
                }
                expect_near(to_values(results[0], DType::f32), p1, DType::f32, 3e-7, where(n, type, shift));
                expect_near(to_values(results[1], DType::f32), m1, DType::f32, 3e-7, where(n, type, shift));
                expect_near(to_values(results[2], DType::f32), v1, DType::f32, 3e-7, where(n, type, shift));
                EXPECT_EQ(results[3], to_bytes(to_values(results[0], DType::f32), type)) << "weights are the rounded masters";
                const HostMatrix p(1, n, DType::f32, p0), m(1, n, DType::f32, m0), v(1, n, DType::f32, v0), g(1, n, DType::f32, g0);
                cpu::adamw(step, p.floats(), m.floats(), v.floats(), g.floats(), Tensor{}, n);
                expect_near(to_values(results[0], DType::f32), p.read(), DType::f32, 3e-7, "CPU");
            }
        }
    }
}

TEST(AdamW, WorksWithoutWeightsOrWithMastersAsWeights) {
    const AdamWStep step{1e-2, 0.9, 0.95, 1e-8, 0.0, 0.1, 0.05, 1.0};
    const Values ones(5, 1.0), zeros(5, 0.0);
    for (const bool same : {false, true}) {
        Stream stream;
        const Matrix p(stream, 1, 5, DType::f32, ones), m(stream, 1, 5, DType::f32, zeros), v(stream, 1, 5, DType::f32, zeros);
        const Matrix g(stream, 1, 5, DType::f32, ones);
        adamw(stream, step, p.floats(), m.floats(), v.floats(), g.floats(), same ? Tensor(p) : Tensor{}, 5);
        for (const double value : to_values(p.read(), DType::f32)) EXPECT_NEAR(value, 0.99, 1e-6);
    }
}

}  // namespace
}  // namespace sherd::cuda::testing
