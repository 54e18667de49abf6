/// Kernels over rows and sums (norms, biases, embedding, loss, norms of vectors) against plain loops in double and the CPU backend.
#include "kernels_testing.hpp"

#include <limits>

namespace sherd::cuda::testing {
namespace {

struct Shape {
    std::int64_t rows, columns, shift = 0;
};

std::string where(const Shape& s, DType type) {
    return std::to_string(s.rows) + " x " + std::to_string(s.columns) + " of " + std::string(name_of(type)) + ", shifted by " +
           std::to_string(s.shift);
}

/// Heads of query/key norms, rows of a few warps, widths that 16 bytes do not divide, rows that no block holds.
constexpr Shape norm_shapes[] = {{1, 1}, {3, 8}, {37, 16}, {70, 64}, {67, 128}, {9, 576}, {3, 2048}, {5, 31}, {2, 257}, {3, 96, 1}};

std::size_t at(const Shape& s, std::int64_t row, std::int64_t column) {
    return static_cast<std::size_t>(row * s.columns + column);
}

struct NormInputs {
    Values x, delta, w, dy, dx;
    NormInputs(const Shape& s, DType type)
        : x(random_values(s.rows * s.columns, 1, type)),
          delta(random_values(s.rows * s.columns, 2, type)),
          w(random_values(s.columns, 3, type)),
          dy(random_values(s.rows * s.columns, 4, type)),
          dx(random_values(s.rows * s.columns, 5, type)) {}
};

void check_norm_forward(const Shape& s, DType type, bool with_delta) {
    const NormInputs in(s, type);
    const auto results = in_all_orders([&](Stream& stream) {
        const Matrix x(stream, s.rows, s.columns, type, in.x, s.shift), delta(stream, s.rows, s.columns, type, in.delta, s.shift);
        const Matrix w(stream, 1, s.columns, type, in.w, s.shift), y(stream, s.rows, s.columns, type, s.shift);
        const Matrix again(stream, s.rows, s.columns, type, s.shift), rstd(stream, 1, s.rows, DType::f32);
        // in place where a residual is added, as a decoder does
        rms_norm_forward(stream, y, rstd.floats(), x, x, with_delta ? Tensor(delta) : Tensor{}, w, 1e-5f);
        rms_norm_again(stream, again, x, rstd.floats(), w);
        return std::vector<Bytes>{y.read(), rstd.read(), x.read(), again.read()};
    });
    Values sum = in.x, y(in.x.size()), rstd(static_cast<std::size_t>(s.rows));
    for (std::size_t i = 0; i < sum.size() && with_delta; ++i) sum[i] = static_cast<double>(rounded(sum[i] + in.delta[i], type));
    for (std::int64_t r = 0; r < s.rows; ++r) {
        double squares = 0;
        for (std::int64_t c = 0; c < s.columns; ++c) squares += sum[at(s, r, c)] * sum[at(s, r, c)];
        const double scale = 1 / std::sqrt(squares / static_cast<double>(s.columns) + 1e-5);
        rstd[static_cast<std::size_t>(r)] = scale;
        for (std::int64_t c = 0; c < s.columns; ++c) y[at(s, r, c)] = sum[at(s, r, c)] * scale * in.w[static_cast<std::size_t>(c)];
    }
    EXPECT_EQ(results[2], to_bytes(sum, type)) << "the sum, or x left alone";
    expect_near(to_values(results[0], type), y, type, 1e-6, "y of " + where(s, type));
    expect_near(to_values(results[1], DType::f32), rstd, DType::f32, 1e-6, "rstd of " + where(s, type));
    EXPECT_EQ(results[3], results[0]) << "again computes the same bits";
}

TEST(RmsNorm, ForwardAgreesWithTheDefinition) {
    for (const DType type : all_types) {
        for (const Shape& s : norm_shapes) {
            check_norm_forward(s, type, false);
            check_norm_forward(s, type, true);
        }
    }
    check_norm_forward({1, 8200}, DType::f32, true);  // more than 1,024 threads hold
    check_norm_forward({2, 8192}, DType::f32, true);  // all that 1,024 threads hold
    check_norm_forward({2, 12288}, DType::bf16, true);
    check_norm_forward({2, 16384}, DType::bf16, false);  // the widest models
}

void check_norm_backward(const Shape& s, DType type, bool accumulate) {
    NormInputs in(s, type);
    // a dx that is not added to must not be read either: it is full of NaN
    const Values dx_before = accumulate ? in.dx : Values(in.dx.size(), NAN);
    if (!accumulate) in.dx.assign(in.dx.size(), 0.0);
    Values rstd;
    for (const double v : random_values(s.rows, 6)) rstd.push_back(static_cast<double>(static_cast<float>(0.5 + std::abs(v))));
    const Values dw0 = random_values(s.columns, 7);
    const auto results = in_all_orders([&](Stream& stream) {
        const Matrix x(stream, s.rows, s.columns, type, in.x, s.shift), dy(stream, s.rows, s.columns, type, in.dy, s.shift);
        const Matrix w(stream, 1, s.columns, type, in.w, s.shift), dx(stream, s.rows, s.columns, type, dx_before, s.shift);
        const Matrix r(stream, 1, s.rows, DType::f32, rstd), dw(stream, 1, s.columns, DType::f32, dw0);
        const Matrix scratch(stream, 1, rms_norm_scratch(s.rows, s.columns), DType::f32);
        rms_norm_backward(stream, dx, dw.floats(), dy, x, r.floats(), w, scratch.floats(), accumulate);
        return std::vector<Bytes>{dx.read(), dw.read()};
    });
    Values dx = in.dx, dw = dw0;
    for (std::int64_t r = 0; r < s.rows; ++r) {
        const double scale = rstd[static_cast<std::size_t>(r)];
        double dot = 0;
        for (std::int64_t c = 0; c < s.columns; ++c) dot += in.dy[at(s, r, c)] * in.w[static_cast<std::size_t>(c)] * in.x[at(s, r, c)];
        for (std::int64_t c = 0; c < s.columns; ++c) {
            const std::size_t i = at(s, r, c);
            dw[static_cast<std::size_t>(c)] += in.dy[i] * in.x[i] * scale;
            dx[i] +=
                scale * (in.dy[i] * in.w[static_cast<std::size_t>(c)] - in.x[i] * scale * scale * dot / static_cast<double>(s.columns));
        }
    }
    expect_near(to_values(results[0], type), dx, type, 2e-6, "dx of " + where(s, type));
    expect_near(to_values(results[1], DType::f32), dw, DType::f32, 3e-6, "dw of " + where(s, type));
    if (!on_cpu(type)) return;
    const HostMatrix x(s.rows, s.columns, type, in.x), dy(s.rows, s.columns, type, in.dy), w(1, s.columns, type, in.w);
    const HostMatrix host_dx(s.rows, s.columns, type, dx_before), r(1, s.rows, DType::f32, rstd), host_dw(1, s.columns, DType::f32, dw0);
    const HostMatrix scratch(1, cpu::rms_norm_scratch(s.rows, s.columns), DType::f32);
    cpu::rms_norm_backward(host_dx, host_dw.floats(), dy, x, r.floats(), w, scratch.floats(), accumulate);
    expect_near(to_values(results[0], type), host_dx.read(), type, 2e-6 + rounding_of(type), "dx on the CPU");
    expect_near(to_values(results[1], DType::f32), host_dw.read(), DType::f32, 3e-6, "dw on the CPU");
}

void check_norm_backward(const Shape& s, DType type) {
    for (const bool accumulate : {false, true}) check_norm_backward(s, type, accumulate);
}

TEST(RmsNorm, BackwardAgreesWithTheDefinition) {
    for (const DType type : all_types) {
        for (const Shape& s : norm_shapes) check_norm_backward(s, type);
    }
    check_norm_backward({1, 8200}, DType::f32, false);
    check_norm_backward({9, 4096}, DType::bf16, true);  // more rows than blocks: each takes several
    check_norm_backward({9, 8192}, DType::f32, false);  // four vectors a thread, all that its threads hold
    check_norm_backward({6, 12288}, DType::bf16, true);
    check_norm_backward({5, 16384}, DType::f16, false);
    check_norm_backward({1, 16392}, DType::bf16, true);
    check_norm_backward({70, 520}, DType::bf16, false);
    check_norm_backward({530, 9}, DType::f32, true);
    check_norm_backward({2300, 256}, DType::f32, false);  // several turns of blocks of several rows
}

TEST(RmsNorm, TakesNoRows) {
    for (const DType type : all_types) {
        check_norm_forward({0, 64}, type, true);
        check_norm_backward({0, 64}, type);
    }
}

constexpr Shape bias_shapes[] = {{1, 1}, {7, 8}, {33, 264}, {65, 31}, {130, 257}, {9, 96, 1}, {200, 16}, {5000, 8}};

TEST(Bias, GradientIsTheSumOfRows) {
    for (const DType type : all_types) {
        for (const Shape& s : bias_shapes) {
            const Values dy0 = random_values(s.rows * s.columns, 1, type), db0 = random_values(s.columns, 2);
            const auto results = in_all_orders([&](Stream& stream) {
                const Matrix dy(stream, s.rows, s.columns, type, dy0, s.shift), db(stream, 1, s.columns, DType::f32, db0);
                const Matrix scratch(stream, 1, bias_scratch(s.rows, s.columns), DType::f32);
                bias_backward(stream, db.floats(), dy, scratch.floats());
                return std::vector<Bytes>{db.read()};
            });
            Values expected = db0;
            for (std::int64_t r = 0; r < s.rows; ++r) {
                for (std::int64_t c = 0; c < s.columns; ++c) expected[static_cast<std::size_t>(c)] += dy0[at(s, r, c)];
            }
            expect_near(to_values(results[0], DType::f32), expected, DType::f32, 2e-6, where(s, type));
            if (!on_cpu(type)) continue;
            const HostMatrix dy(s.rows, s.columns, type, dy0), db(1, s.columns, DType::f32, db0);
            cpu::bias_backward(db.floats(), dy);
            expect_near(to_values(results[0], DType::f32), db.read(), DType::f32, 2e-6, "CPU");
        }
    }
}

constexpr Shape embedding_shapes[] = {{1, 1}, {13, 8}, {40, 31}, {300, 24}, {5, 2056}, {9, 16, 1}, {1100, 8}};
constexpr std::int32_t vocabulary = 23;

/// Rows with frequent, rare and no ids.
std::vector<std::int32_t> ids_of(std::int64_t rows) {
    std::vector<std::int32_t> ids;
    for (std::int64_t t = 0; t < rows; ++t) {
        ids.push_back(t % 7 == 3 ? -1 : t % 3 == 0 ? 5 : static_cast<std::int32_t>(t * t % vocabulary));
    }
    return ids;
}

TEST(Embedding, CopiesRowsOfTheTable) {
    for (const DType type : all_types) {
        for (const Shape& s : embedding_shapes) {
            const Values table = random_values(vocabulary * s.columns, 1, type);
            const auto ids = ids_of(s.rows);
            const auto results = in_all_orders([&](Stream& stream) {
                const Matrix from(stream, vocabulary, s.columns, type, table, s.shift), y(stream, s.rows, s.columns, type, s.shift);
                const Integers at_rows(stream, ids);
                embedding_forward(stream, y, from, at_rows.data());
                return std::vector<Bytes>{y.read()};
            });
            Values expected(static_cast<std::size_t>(s.rows * s.columns));
            for (std::int64_t t = 0; t < s.rows; ++t) {
                const std::int32_t id = ids[static_cast<std::size_t>(t)];
                for (std::int64_t c = 0; c < s.columns && id >= 0; ++c) {
                    expected[at(s, t, c)] = table[static_cast<std::size_t>(id * s.columns + c)];
                }
            }
            EXPECT_EQ(results[0], to_bytes(expected, type)) << where(s, type);
        }
    }
}

TEST(Embedding, GradientIsAddedInTheOrderOfRows) {
    for (const DType type : all_types) {
        for (const Shape& s : embedding_shapes) {
            const Values table = random_values(vocabulary * s.columns, 1), dy0 = random_values(s.rows * s.columns, 2, type);
            const auto ids = ids_of(s.rows);
            const auto results = in_all_orders([&](Stream& stream) {
                const Matrix to(stream, vocabulary, s.columns, DType::f32, table), dy(stream, s.rows, s.columns, type, dy0, s.shift);
                const Integers at_rows(stream, ids);
                const Memory scratch(stream, static_cast<std::size_t>(embedding_scratch(s.rows)) * sizeof(std::int32_t));
                embedding_backward(stream, to, dy, at_rows.data(), reinterpret_cast<std::int32_t*>(scratch.data()));
                return std::vector<Bytes>{to.read()};
            });
            Values expected = table;
            for (std::int64_t t = 0; t < s.rows; ++t) {
                const std::int32_t id = ids[static_cast<std::size_t>(t)];
                for (std::int64_t c = 0; c < s.columns && id >= 0; ++c) {
                    double& sum = expected[static_cast<std::size_t>(id * s.columns + c)];
                    sum = static_cast<double>(static_cast<float>(sum) + static_cast<float>(dy0[at(s, t, c)]));
                }
            }
            EXPECT_EQ(results[0], to_bytes(expected, DType::f32)) << "bit for bit: " << where(s, type);
        }
    }
}

TEST(Embedding, ForeignIdsGiveNaNAndTouchNothing) {
    Stream stream;
    const Matrix table(stream, 2, 4, DType::f32, Values(8, 1.0)), y(stream, 2, 4, DType::f32);
    const Integers ids(stream, {2, 1});
    embedding_forward(stream, y, table, ids.data());
    const Values values = to_values(y.read(), DType::f32);
    EXPECT_TRUE(std::isnan(values[0]) && std::isnan(values[3]));
    EXPECT_EQ(values[4], 1.0);
    const Matrix dtable(stream, 2, 4, DType::f32, Values(8, 0.0)), dy(stream, 2, 4, DType::f32, Values(8, 3.0));
    const Memory scratch(stream, 2 * sizeof(std::int32_t));
    embedding_backward(stream, dtable, dy, ids.data(), reinterpret_cast<std::int32_t*>(scratch.data()));
    EXPECT_EQ(to_values(dtable.read(), DType::f32), (Values{0, 0, 0, 0, 3, 3, 3, 3}));
}

struct LossInputs {
    Values logits;
    std::vector<std::int32_t> targets;
    explicit LossInputs(const Shape& s) : logits(random_values(s.rows * s.columns, 1, DType::f32, 3.0)) {
        for (std::int64_t t = 0; t < s.rows; ++t) {
            targets.push_back(t % 4 == 3 ? -100 : static_cast<std::int32_t>(t * 7919 % s.columns));
        }
    }
};

void check_loss(const Shape& s, DType type, bool in_place, bool with_gradient) {
    const LossInputs in(s);
    const float factor = 0.5f;
    const auto results = in_all_orders([&](Stream& stream) {
        const Matrix logits(stream, s.rows, s.columns, DType::f32, in.logits, s.shift), loss(stream, 1, s.rows, DType::f32);
        const Matrix gradient(stream, s.rows, s.columns, type, s.shift);
        const Integers targets(stream, in.targets);
        const Tensor to = in_place ? Tensor(logits) : with_gradient ? Tensor(gradient) : Tensor{};
        cross_entropy(stream, loss.floats(), to, logits, targets.data(), factor);
        return std::vector<Bytes>{loss.read(), in_place ? logits.read() : gradient.read()};
    });
    Values loss(static_cast<std::size_t>(s.rows)), gradient(in.logits.size());
    for (std::int64_t t = 0; t < s.rows; ++t) {
        const std::int32_t target = in.targets[static_cast<std::size_t>(t)];
        if (target < 0) continue;
        double top = -INFINITY, sum = 0;
        for (std::int64_t c = 0; c < s.columns; ++c) top = std::max(top, in.logits[at(s, t, c)]);
        for (std::int64_t c = 0; c < s.columns; ++c) sum += std::exp(in.logits[at(s, t, c)] - top);
        loss[static_cast<std::size_t>(t)] = std::log(sum) + top - in.logits[at(s, t, target)];
        for (std::int64_t c = 0; c < s.columns; ++c) {
            gradient[at(s, t, c)] = (std::exp(in.logits[at(s, t, c)] - top) / sum - (c == target ? 1 : 0)) * static_cast<double>(factor);
        }
    }
    const Values actual = to_values(results[0], DType::f32);
    for (std::size_t t = 0; t < actual.size(); ++t) EXPECT_NEAR(actual[t], loss[t], 3e-6 * (1 + loss[t])) << where(s, type);
    if (with_gradient) expect_near(to_values(results[1], type), gradient, type, 1e-6, where(s, type));
    if (with_gradient && type == DType::f32 && s.rows > 0) {
        const HostMatrix logits(s.rows, s.columns, DType::f32, in.logits), host_loss(1, s.rows, DType::f32);
        cpu::cross_entropy(host_loss.floats(), logits, logits, in.targets.data(), factor);
        expect_near(to_values(results[1], type), logits.read(), type, 1e-6, "CPU");
    }
}

constexpr Shape loss_shapes[] = {{1, 1}, {7, 3}, {5, 31}, {9, 257}, {5, 128, 1}, {3, 2051}, {0, 17}};

TEST(CrossEntropy, LossAndGradientAgreeWithTheDefinition) {
    for (const Shape& s : loss_shapes) {
        for (const DType type : all_types) check_loss(s, type, false, true);
        check_loss(s, DType::f32, true, true);
        check_loss(s, DType::f32, false, false);
    }
    check_loss({2, 8205}, DType::bf16, false, true);   // the widest block
    check_loss({1, 12288}, DType::bf16, false, true);  // 48 KiB of shared memory, and what the kernel has beside
    check_loss({1, 60001}, DType::bf16, false, true);  // more than shared memory keeps
    check_loss({2, 59999}, DType::f32, true, true);
}

TEST(CrossEntropy, StandsExtremesAndReportsWhatIsNotFinite) {
    Stream stream;
    const double inf = INFINITY;
    const Values z{1e30, -1e30, -inf, 0.0, /**/ NAN, 0.0, 0.0, 0.0, /**/ -inf, 5.0, 5.0, -inf, /**/ 1.0, 1.0, 1.0, 1.0};
    const Matrix logits(stream, 4, 4, DType::f32, z), loss(stream, 1, 4, DType::f32);
    const Integers targets(stream, {0, 1, 2, 4});
    cross_entropy(stream, loss.floats(), Tensor{}, logits, targets.data(), 1.0f);
    const Values values = to_values(loss.read(), DType::f32);
    EXPECT_EQ(values[0], 0.0);
    EXPECT_TRUE(std::isnan(values[1]));
    EXPECT_NEAR(values[2], std::log(2.0), 1e-6);
    EXPECT_TRUE(std::isnan(values[3])) << "a target beyond the vocabulary";
}

TEST(Sums, AreExactInDoubleAndDependOnTheSizeAlone) {
    for (const std::int64_t n : {0, 1, 5, 1023, 4097, 100003}) {
        const Values values = random_values(n, 1);
        std::vector<std::vector<Bytes>> by_shift;
        for (const std::int64_t shift : {0, 1}) {
            by_shift.push_back(in_all_orders([&](Stream& stream) {
                const Matrix x(stream, 1, n, DType::f32, values, shift);
                const Memory scratch(stream, reduce_scratch * sizeof(double)), out(stream, Bytes(2 * sizeof(double), 0));
                auto* const to = reinterpret_cast<double*>(out.data());
                auto* const space = reinterpret_cast<double*>(scratch.data());
                sum(stream, to, x.floats(), n, space);
                sum_squares(stream, to + 1, x.floats(), n, space);
                sum_squares(stream, to + 1, x.floats(), n, space);  // added to what is there
                return std::vector<Bytes>{out.read()};
            }));
        }
        EXPECT_EQ(by_shift[0], by_shift[1]) << "the address changes the order";
        double out[2], total = 0, squares = 0;
        std::memcpy(out, by_shift[0][0].data(), sizeof out);
        for (const double v : values) {
            total += v;
            squares += v * v;
        }
        EXPECT_NEAR(out[0], total, 1e-12 * static_cast<double>(n)) << n;
        EXPECT_NEAR(out[1], 2 * squares, 1e-12 * static_cast<double>(n)) << n;
    }
}

TEST(Sums, TakeManyTurnsOfAllBlocks) {
    const std::int64_t n = reduce_scratch * 4096 + 4099;
    Stream stream;
    Values values(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i % 1021);
    const Matrix x(stream, 1, n, DType::f32, values);
    const Memory scratch(stream, reduce_scratch * sizeof(double)), out(stream, Bytes(sizeof(double), 0));
    sum(stream, reinterpret_cast<double*>(out.data()), x.floats(), n, reinterpret_cast<double*>(scratch.data()));
    double result = 0, expected = 0;
    std::memcpy(&result, out.read().data(), sizeof result);
    for (const double v : values) expected += v;
    EXPECT_EQ(result, expected) << "integers are added without rounding";
}

TEST(Sums, ShowWhatIsNotFinite) {
    for (const double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
        Values values(5000, 1.0);
        values[4999] = bad;
        Stream stream;
        const Matrix x(stream, 1, 5000, DType::f32, values);
        const Memory scratch(stream, reduce_scratch * sizeof(double)), out(stream, Bytes(sizeof(double), 0));
        sum_squares(stream, reinterpret_cast<double*>(out.data()), x.floats(), 5000, reinterpret_cast<double*>(scratch.data()));
        double result = 0;
        std::memcpy(&result, out.read().data(), sizeof result);
        EXPECT_FALSE(std::isfinite(result));
    }
}

}  // namespace
}  // namespace sherd::cuda::testing
