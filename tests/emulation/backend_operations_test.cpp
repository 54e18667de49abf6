/// Every operation of the GPU through the interface of a Backend, against the CPU's: that each reaches its kernel with the right arguments.
#include "both_backends.hpp"

namespace sherd::tests {
namespace {

class Operations : public testing::TestWithParam<DType> {
  protected:
    void SetUp() override {
#ifndef SHERD_ON_DEVICE
        emu::device_options = {};
        emu::reset_devices();
#endif
    }
    DType type = GetParam();
};
INSTANTIATE_TEST_SUITE_P(Types, Operations, testing::Values(DType::f32, DType::bf16),
                         [](const auto& p) { return std::string(name_of(p.param)); });

TEST_P(Operations, CastsAddsZeroesAndCopies) {
    Both both;
    const Twin x = both.random(5, 37, DType::f32), y = both.random(5, 37, type), z = both.constant(5, 37, DType::f32, 3),
               copy = both.constant(5, 37, type, 1), fresh = both.constant(5, 37, type, NAN), half = both.random(5, 37, DType::f16),
               widened = both.constant(5, 37, DType::f32, NAN), sum = both.random(5, 37, DType::f32);
    both.run([&](Backend& b, Stream& s, auto pick) {
        b.add(s, pick(y), pick(x), true);
        b.add(s, pick(fresh), pick(x), false);
        b.add(s, pick(sum), pick(y), true);
        b.add(s, pick(widened), pick(half), false);
        b.cast(s, pick(z), pick(y));
        b.copy(s, pick(copy).data, pick(y).data, pick(y).bytes());
        b.zero(s, pick(y).data, 6);
    });
    for (const Twin& t : {y, z, copy, fresh, widened, sum}) both.expect_near(t, near(type), "values");
}

TEST_P(Operations, SumsInDouble) {
    Both both;
    const Twin x = both.random(1, 3001, DType::f32), out = both.constant(1, 8, DType::f32, 0);
    both.run([&](Backend& b, Stream& s, auto pick) {
        auto* sums = static_cast<double*>(pick(out).data);
        b.sum(s, sums, static_cast<const float*>(pick(x).data), 3001);
        b.sum_squares(s, sums + 1, static_cast<const float*>(pick(x).data), 3001);
    });
    double gpu[2], cpu[2];
    std::memcpy(gpu, both.gpu.read(out.gpu.data, 16).data(), 16);
    std::memcpy(cpu, both.cpu.read(out.cpu.data, 16).data(), 16);
    for (int i = 0; i < 2; ++i) EXPECT_NEAR(gpu[i], cpu[i], 1e-9 * std::abs(cpu[1])) << i;
    EXPECT_GT(cpu[1], 2000);
}

TEST_P(Operations, MultipliesForwardAndBackward) {
    for (const auto& [rows, in, out] : {std::array<std::int64_t, 3>{16, 24, 40}, {33, 7, 5}, {1, 64, 9}}) {
        Both both;
        const Twin x = both.random(rows, in, type), w = both.random(out, in, type), y = both.constant(rows, out, type, NAN);
        const Twin logits = both.constant(rows, out, DType::f32, NAN), dy = both.random(rows, out, type), dx = both.random(rows, in, type);
        const Twin fresh = both.constant(rows, in, type, NAN), dw = both.random(out, in, DType::f32);
        const Twin bias = both.random(1, out, type, 3), other_bias = both.random(1, out, type, 3);
        const Twin biased = both.constant(rows, out, type, NAN), other = both.constant(rows, out, type, NAN);
        const Twin fresh_dw = both.constant(out, in, DType::f32, NAN);
        both.run([&](Backend& b, Stream& s, auto pick) {
            b.linear_forward(s, pick(y), pick(x), pick(w), {});
            b.linear_forward(s, pick(logits), pick(x), pick(w), {});
            b.linear_forward(s, pick(biased), pick(x), pick(w), pick(bias));
            b.linear_forward(s, pick(other), pick(x), pick(w), pick(other_bias));  // the same product, another address
            b.linear_backward_input(s, pick(fresh), pick(dy), pick(w), false);
            b.linear_backward_input(s, pick(dx), pick(dy), pick(w), true);
            b.linear_backward_weight(s, pick(dw), pick(dy), pick(x), true);
            b.linear_backward_weight(s, pick(fresh_dw), pick(dy), pick(x), false);
        });
        both.expect_near(y, near(type), "y");
        both.expect_near(logits, 2e-5, "logits");
        both.expect_near(biased, near(type), "y with bias");
        both.expect_near(other, near(type), "y with another bias");
        both.expect_near(fresh, near(type), "dx");
        both.expect_near(dx, near(type), "dx, added");
        both.expect_near(dw, 2e-5, "dw, added");
        both.expect_near(fresh_dw, 2e-5, "dw");
    }
}

/// y = x w^T of a GPU alone, against plain sums in double of what the GPU was given; the largest difference, of numbers about `inputs` in
/// size.
double product_error(DType type, bool tf32) {
    constexpr std::int64_t rows = 17, inputs = 48, outputs = 24;
    Side gpu(make_cuda_backend({.index = 0, .memory_limit = 0, .tf32 = tf32}));
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    const auto given = [&](std::int64_t n) {
        std::vector<float> values;
        for (std::int64_t i = 0; i < n; ++i) values.push_back(normal(random));
        return type == DType::f32 ? values : to_floats(to_bytes(values, type), type);
    };
    const auto x = given(rows * inputs), w = given(outputs * inputs);
    const auto bytes = [&](const std::vector<float>& values) {
        if (type != DType::f32) return to_bytes(values, type);
        const auto* first = reinterpret_cast<const unsigned char*>(values.data());
        return std::vector<unsigned char>(first, first + values.size() * sizeof(float));
    };
    const auto x_bytes = bytes(x), w_bytes = bytes(w);
    const std::vector<unsigned char> nothing(rows * outputs * sizeof(float), 0xff);
    const Tensor y{gpu.place(nothing.data(), nothing.size()), DType::f32, rows, outputs};
    gpu.backend->linear_forward(*gpu.stream, y, {gpu.place(x_bytes.data(), x_bytes.size()), type, rows, inputs},
                                {gpu.place(w_bytes.data(), w_bytes.size()), type, outputs, inputs}, {});
    const auto found = to_floats(gpu.read(y.data, nothing.size()), DType::f32);
    double most = 0;
    for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t o = 0; o < outputs; ++o) {
            double sum = 0;
            for (std::int64_t i = 0; i < inputs; ++i)
                sum += double{x[static_cast<std::size_t>(r * inputs + i)]} * w[static_cast<std::size_t>(o * inputs + i)];
            most = std::max(most, std::abs(sum - found[static_cast<std::size_t>(r * outputs + o)]));
        }
    return most;
}

TEST(Products, OfHalvesAndWithTf32AreAsExactAsTheirTypes) {
#ifndef SHERD_ON_DEVICE
    emu::device_options = {};
    emu::reset_devices();
#endif
    EXPECT_LT(product_error(DType::f16, false), 2e-5) << "sums are taken in fp32";
    EXPECT_LT(product_error(DType::bf16, true), 2e-5) << "TF32 is for products of fp32";
    EXPECT_LT(product_error(DType::f32, false), 2e-5);
    const double tf32 = product_error(DType::f32, true);
    EXPECT_GT(tf32, 5e-4) << "inputs of 10 bits";
    EXPECT_LT(tf32, 2e-2);
}

TEST_P(Operations, RoundsProductAndBiasOnce) {
    Both both;
    // bf16 has 8 bits: 257 rounded alone is 256
    const Twin x = both.matrix(1, 2, type, {1, 1}), w = both.matrix(2, 2, type, {256, 1, 2, 3}), bias = both.matrix(1, 2, type, {-256, 4}),
               y = both.constant(1, 2, type, NAN);
    both.run([&](Backend& b, Stream& s, auto pick) { b.linear_forward(s, pick(y), pick(x), pick(w), pick(bias)); });
    EXPECT_EQ(to_floats(both.gpu.read(y.gpu.data, y.gpu.bytes()), type), (std::vector<float>{1, 9}));
}

TEST_P(Operations, SumsBiasGradientsAndEmbeds) {
    Both both;
    const Twin y = both.random(19, 22, type), dbias = both.random(1, 22, DType::f32);
    const Twin table = both.random(11, 22, type), dtable = both.random(11, 22, DType::f32), rows = both.constant(6, 22, type, NAN),
               dy = both.random(6, 22, type);
    const Twin ids = both.integers({3, 10, 3, -1, 0, 3});
    both.run([&](Backend& b, Stream& s, auto pick) {
        const auto* id = static_cast<const std::int32_t*>(pick(ids).data);
        b.bias_backward(s, static_cast<float*>(pick(dbias).data), pick(y));
        b.embedding_forward(s, pick(rows), pick(table), id);
        b.embedding_backward(s, pick(dtable), pick(dy), id);
    });
    both.expect_near(dbias, 2e-5 + (type == DType::f32 ? 0 : 1e-3), "dbias");
    both.expect_near(rows, 0, "rows of the table");
    both.expect_near(dtable, 2e-6, "dtable");
}

TEST_P(Operations, NormalizesForwardAgainAndBackward) {
    Both both;
    const Twin x = both.random(9, 48, type), delta = both.random(9, 48, type), w = both.random(1, 48, type),
               sum = both.constant(9, 48, type, NAN);
    const Twin y = both.constant(9, 48, type, NAN), again = both.constant(9, 48, type, NAN), rstd = both.constant(1, 9, DType::f32, NAN);
    const Twin dx = both.random(9, 48, type), dy = both.random(9, 48, type), dw = both.random(1, 48, DType::f32),
               fresh = both.constant(9, 48, type, NAN);
    const std::int64_t scratch = std::max(both.gpu.backend->rms_norm_scratch(9, 48), both.cpu.backend->rms_norm_scratch(9, 48));
    const Twin temporary = both.constant(1, scratch, DType::f32, NAN);
    both.run([&](Backend& b, Stream& s, auto pick) {
        auto* r = static_cast<float*>(pick(rstd).data);
        b.rms_norm_forward(s, pick(y), r, pick(sum), pick(x), pick(delta), pick(w), 1e-5f);
        b.rms_norm_again(s, pick(again), pick(sum), r, pick(w));
        for (const bool accumulate : {false, true})
            b.rms_norm_backward(s, pick(accumulate ? dx : fresh), static_cast<float*>(pick(dw).data), pick(dy), pick(sum), r, pick(w),
                                static_cast<float*>(pick(temporary).data), accumulate);
    });
    for (const Twin& t : {y, again, sum, dx, fresh}) both.expect_near(t, near(type), "activations");
    both.expect_near(rstd, type == DType::f32 ? 2e-6 : 2e-2, "rstd");
    both.expect_near(dw, type == DType::f32 ? 2e-5 : 2e-2, "dw");
}

TEST_P(Operations, RotatesBothWays) {
    Both both;
    const Twin x = both.random(6, 4 * 10, type), cosine = both.random(8, 5, DType::f32), sine = both.random(8, 5, DType::f32),
               positions = both.integers({0, 1, 2, 7, 0, 3});
    both.run([&](Backend& b, Stream& s, auto pick) {
        const auto* c = static_cast<const float*>(pick(cosine).data);
        const auto* z = static_cast<const float*>(pick(sine).data);
        const auto* p = static_cast<const std::int32_t*>(pick(positions).data);
        b.rope(s, pick(x), 4, c, z, p, false);
        b.rope(s, pick(x).slice(1, 4), 4, c, z, p + 1, true);
    });
    both.expect_near(x, near(type), "x");
}

TEST_P(Operations, AttendsForwardAndBackward) {
    for (const auto& [window, by] :
         {std::pair<std::int64_t, AttentionBy>{0, AttentionBy::own}, {5, AttentionBy::own}, {5, AttentionBy::any}}) {
        Both both({.index = 0, .memory_limit = 0, .tf32 = false, .attention = by});
        const std::int64_t rows = 32, heads = 4, kv = 2, size = 16;
        const Twin q = both.random(rows, heads * size, type), k = both.random(rows, kv * size, type),
                   v = both.random(rows, kv * size, type);
        const Twin out = both.constant(rows, heads * size, type, NAN), lse = both.constant(heads, rows, DType::f32, 0),
                   dout = both.random(rows, heads * size, type);
        const Twin dq = both.constant(rows, heads * size, type, NAN), dk = both.constant(rows, kv * size, type, NAN),
                   dv = both.constant(rows, kv * size, type, NAN);
        const Twin offsets = both.integers({0, 13, 13, 30});
        const AttentionShape shape{heads, kv, size, 0.25f, window};
        const std::int64_t scratch = std::max(both.gpu.backend->attention_scratch(rows, 17, shape, type),
                                              both.cpu.backend->attention_scratch(rows, 17, shape, type));
        const Twin temporary = both.constant(1, scratch, DType::f32, NAN);
        both.run([&](Backend& b, Stream& s, auto pick) {
            const Documents documents{static_cast<const std::int32_t*>(pick(offsets).data), 3, 17};
            auto* l = static_cast<float*>(pick(lse).data);
            b.attention_forward(s, pick(out), l, pick(q), pick(k), pick(v), documents, shape);
            b.attention_backward(s, pick(dq), pick(dk), pick(dv), pick(dout), pick(out), l, pick(q), pick(k), pick(v), documents, shape,
                                 pick(temporary));
        });
        for (const Twin& t : {out, dq, dk, dv}) both.expect_near(t, type == DType::f32 ? 1e-5 : 2e-2, "attention");
    }
}

TEST_P(Operations, GatesAndFindsLosses) {
    Both both;
    const Twin gate = both.random(7, 30, type), up = both.random(7, 30, type), out = both.constant(7, 30, type, NAN),
               dout = both.random(7, 30, type);
    const Twin logits = both.random(7, 33, DType::f32, 3), loss = both.constant(1, 7, DType::f32, NAN),
               gradient = both.constant(7, 33, type, NAN);
    const Twin targets = both.integers({0, 32, -1, 5, 5, -1, 31});
    both.run([&](Backend& b, Stream& s, auto pick) {
        b.swiglu_forward(s, pick(out), pick(gate), pick(up));
        b.swiglu_backward(s, pick(gate), pick(up), pick(dout));
        b.cross_entropy(s, static_cast<float*>(pick(loss).data), pick(gradient), pick(logits),
                        static_cast<const std::int32_t*>(pick(targets).data), 0.5f);
    });
    for (const Twin& t : {out, gate, up, dout, gradient}) both.expect_near(t, near(type), "values");
    both.expect_near(loss, 1e-5, "loss");
}

TEST_P(Operations, UpdatesWeights) {
    Both both;
    const Twin master = both.random(1, 130, DType::f32), first = both.random(1, 130, DType::f32),
               second = both.constant(1, 130, DType::f32, 0.5f);
    const Twin gradient = both.random(1, 130, DType::f32), weights = both.constant(1, 130, type, NAN);
    const AdamWStep step{1e-2, 0.9, 0.95, 1e-8, 0.1, 0.1, 0.05, 0.7};
    both.run([&](Backend& b, Stream& s, auto pick) {
        const auto floats = [&](const Twin& t) { return static_cast<float*>(pick(t).data); };
        b.adamw(s, step, floats(master), floats(first), floats(second), floats(gradient), pick(weights), 130);
    });
    for (const Twin& t : {master, first, second}) both.expect_near(t, 1e-6, "state");
    both.expect_near(weights, near(type), "weights");
}

TEST_P(Operations, RefuseShapesThatDoNotFit) {
    Both both;
    const Twin x = both.random(4, 6, type), w = both.random(5, 7, type), y = both.random(4, 5, type);
    Backend& b = *both.gpu.backend;
    Stream& s = *both.gpu.stream;
    EXPECT_THROW(b.linear_forward(s, y.gpu, x.gpu, w.gpu, {}), DeviceError);
    EXPECT_THROW(b.linear_forward(s, y.gpu, x.gpu, both.random(5, 6, type).gpu, both.random(1, 4, type).gpu), DeviceError);
    EXPECT_THROW(b.swiglu_forward(s, y.gpu, x.gpu, x.gpu), DeviceError);
    EXPECT_THROW(b.rope(s, x.gpu, 4, nullptr, nullptr, nullptr, false), DeviceError);
    const auto copies = b.make_stream("copy");
    try {
        b.linear_forward(*copies, y.gpu, x.gpu, both.random(5, 6, type).gpu, {});
        FAIL() << "a product on a stream without a workspace";
    } catch (const DeviceError& error) {
        EXPECT_NE(std::string(error.what()).find("no workspace"), std::string::npos) << error.what();
    }
}

}  // namespace
}  // namespace sherd::tests
