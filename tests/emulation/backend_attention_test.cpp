/// Attention of a Backend where cuDNN computes it: against the CPU's and against own kernels, what it refuses, what it must not change.
#include "both_backends.hpp"

#include "sherd/runtime/error.hpp"

#ifndef SHERD_ON_DEVICE
#include "harness/injection.hpp"
#endif

#include <algorithm>

namespace sherd::tests {
namespace {

struct Case {
    std::string name;
    std::vector<std::int64_t> lengths;
    std::int64_t surplus, heads, kv_heads, head_dim;
    std::int64_t window = 0;

    std::vector<std::int32_t> offsets() const {
        std::vector<std::int32_t> at{0};
        for (const auto length : lengths) at.push_back(at.back() + static_cast<std::int32_t>(length));
        return at;
    }
    std::int64_t used() const { return offsets().back(); }
    std::int64_t rows() const { return used() + surplus; }
    std::int64_t longest() const { return *std::ranges::max_element(lengths); }
    AttentionShape shape() const {
        return {heads, kv_heads, head_dim, static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim))), window};
    }
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
    return out << c.name;
}

std::vector<Case> cases() {
    return {{"one document", {40}, 0, 2, 2, 64},
            {"one row", {1}, 15, 2, 1, 64},
            {"several, one empty, surplus rows", {13, 0, 17, 1}, 5, 4, 2, 64},
            {"shared keys", {30, 9}, 1, 6, 2, 128},
            {"one key head", {21}, 11, 5, 1, 32},
            {"a window", {37, 20}, 7, 2, 1, 64, 6},
            {"a window of one row", {9, 4}, 3, 2, 2, 16, 1},
            {"a window that sees everything", {140}, 4, 1, 1, 16, 150},
            {"a window beyond the longest document", {18}, 0, 2, 2, 24, 5000},
            {"small heads", {11, 12, 10}, 0, 3, 3, 8}};
}

/// What both passes leave.
struct Results {
    std::vector<Twin> all;  ///< out, lse, dq, dk, dv
};

/// The passes of both sides, after memory of results was filled with NaN. scratch: floats that the GPU has; 0: what it asks for.
Results run(Both& both, const Case& c, DType type, std::int64_t scratch = 0) {
    const std::int64_t rows = c.rows(), wide = c.heads * c.head_dim, narrow = c.kv_heads * c.head_dim;
    const Twin q = both.random(rows, wide, type), k = both.random(rows, narrow, type), v = both.random(rows, narrow, type),
               dout = both.random(rows, wide, type);
    const Twin out = both.constant(rows, wide, type, NAN), lse = both.constant(c.heads, rows, DType::f32, 0),
               dq = both.constant(rows, wide, type, NAN), dk = both.constant(rows, narrow, type, NAN),
               dv = both.constant(rows, narrow, type, NAN);
    const Twin offsets = both.integers(c.offsets());
    const std::int64_t wanted = both.gpu.backend->attention_scratch(rows, c.longest(), c.shape(), type);
    const Twin temporary =
        both.constant(1, std::max(wanted, both.cpu.backend->attention_scratch(rows, c.longest(), c.shape(), type)), DType::f32, NAN);
    both.run([&](Backend& b, Stream& s, auto pick) {
        const Documents documents{static_cast<const std::int32_t*>(pick(offsets).data), static_cast<std::int64_t>(c.lengths.size()),
                                  c.longest()};
        auto* l = static_cast<float*>(pick(lse).data);
        b.attention_forward(s, pick(out), l, pick(q), pick(k), pick(v), documents, c.shape());
        Tensor t = pick(temporary);
        if (t.data == temporary.gpu.data && scratch > 0) t.columns = scratch;
        b.attention_backward(s, pick(dq), pick(dk), pick(dv), pick(dout), pick(out), l, pick(q), pick(k), pick(v), documents, c.shape(), t);
    });
    return {{out, lse, dq, dk, dv}};
}

std::vector<unsigned char> bits(const Both& both, const Results& results) {
    std::vector<unsigned char> all;
    for (const Twin& t : results.all) {
        const auto one = both.gpu.read(t.gpu.data, t.gpu.bytes());
        all.insert(all.end(), one.begin(), one.end());
    }
    return all;
}

void expect_as_cpu(const Both& both, const Case& c, const Results& results) {
    const bool trivial = c.longest() == 1 || c.window == 1;  // a softmax over one key has no gradient
    for (std::size_t i = 0; i < results.all.size(); ++i) {
        const Twin& t = results.all[i];
        if (trivial && (i == 2 || i == 3)) {
            for (const float x : to_floats(both.gpu.read(t.gpu.data, t.gpu.bytes()), t.gpu.dtype)) ASSERT_NEAR(x, 0, 0.02) << i;
            continue;
        }
        both.expect_near(t, i == 1 ? 1e-4 : 2e-2, fmt::format("{}: result {}", c.name, i));
    }
}

void expect_zero_surplus(const Both& both, const Case& c, const Results& results) {
    for (const std::size_t i : {0, 2, 3, 4}) {
        const Tensor& t = results.all[i].gpu;
        const Tensor rest = t.slice(c.used(), c.surplus);
        for (const float x : to_floats(both.gpu.read(rest.data, rest.bytes()), t.dtype)) ASSERT_EQ(x, 0) << c.name << ": result " << i;
    }
}

class CudnnAttention : public testing::TestWithParam<Case> {
  protected:
    void SetUp() override {
#ifndef SHERD_ON_DEVICE
        emu::device_options = {};
        emu::reset_devices();
        emu::forget_calls();
#else
        if (cuda_build().find("no cuDNN") != std::string::npos) GTEST_SKIP() << "this binary has no cuDNN";
        const Gpu gpu = find_gpus().list.at(0);
        if (gpu.major != 9 && gpu.major != 10) GTEST_SKIP() << "cuDNN has no deterministic gradients of packed documents on " << gpu.name;
#endif
    }
    static CudaOptions demanded() {
        return {.index = 0, .memory_limit = 0, .tf32 = false, .attention = AttentionBy::cudnn};
    }
    static CudaOptions own() {
        return {.index = 0, .memory_limit = 0, .tf32 = false, .attention = AttentionBy::own};
    }
};
INSTANTIATE_TEST_SUITE_P(Shapes, CudnnAttention, testing::ValuesIn(cases()));

TEST_P(CudnnAttention, IsTheCpus) {
    const Case c = GetParam();
    Both both(demanded());
    const Results results = run(both, c, DType::bf16);
    expect_as_cpu(both, c, results);
    expect_zero_surplus(both, c, results);
#ifndef SHERD_ON_DEVICE
    EXPECT_EQ(emu::calls()["execute"], 2);
#endif
}

TEST_P(CudnnAttention, IsThatOfOwnKernelsInFp16) {
    const Case c = GetParam();
    Both by_cudnn(demanded()), by_kernels(own());
    // the CPU does not compute in fp16: it gets the same numbers as bf16, and is not looked at
    const auto on_gpu = [&](Both& both) {
        const std::int64_t rows = c.rows(), wide = c.heads * c.head_dim, narrow = c.kv_heads * c.head_dim;
        Backend& b = *both.gpu.backend;
        Stream& s = *both.gpu.stream;
        const Tensor q = both.random(rows, wide, DType::f16).gpu, k = both.random(rows, narrow, DType::f16).gpu,
                     v = both.random(rows, narrow, DType::f16).gpu, dout = both.random(rows, wide, DType::f16).gpu;
        const auto filled = [&](std::int64_t columns) { return both.constant(rows, columns, DType::f16, NAN).gpu; };
        const Tensor out = filled(wide), dq = filled(wide), dk = filled(narrow), dv = filled(narrow);
        const Tensor lse = both.constant(c.heads, rows, DType::f32, NAN).gpu;
        const Tensor scratch = both.constant(1, b.attention_scratch(rows, c.longest(), c.shape(), DType::f16), DType::f32, NAN).gpu;
        const Documents documents{static_cast<const std::int32_t*>(both.integers(c.offsets()).gpu.data),
                                  static_cast<std::int64_t>(c.lengths.size()), c.longest()};
        b.attention_forward(s, out, lse.as<float>(), q, k, v, documents, c.shape());
        b.attention_backward(s, dq, dk, dv, dout, out, lse.as<float>(), q, k, v, documents, c.shape(), scratch);
        std::vector<std::vector<float>> results;
        for (const Tensor& t : {out, lse, dq, dk, dv}) results.push_back(to_floats(both.gpu.read(t.data, t.bytes()), t.dtype));
        return results;
    };
    const auto a = on_gpu(by_cudnn), b = on_gpu(by_kernels);
    for (std::size_t r = 0; r < a.size(); ++r) {
        float largest = 1;
        for (const float x : b[r]) largest = std::max(largest, std::abs(x));
        for (std::size_t i = 0; i < a[r].size(); ++i) ASSERT_NEAR(a[r][i], b[r][i], 4e-3f * largest) << "result " << r << ", " << i;
    }
}

TEST_P(CudnnAttention, RepeatsBitByBit) {
    Both one(demanded()), two(demanded());
    EXPECT_EQ(bits(one, run(one, GetParam(), DType::bf16)), bits(two, run(two, GetParam(), DType::bf16)));
}

/// A micro-batch with documents so unlike that gradients by cuDNN need more scratch than was planned: each pass takes what the other left.
TEST_P(CudnnAttention, SharesStatisticsWithOwnKernels) {
    const Case c = GetParam();
    Both both(demanded());
    const Results results = run(both, c, DType::bf16, c.rows() * c.heads);
    expect_as_cpu(both, c, results);
    expect_zero_surplus(both, c, results);
#ifndef SHERD_ON_DEVICE
    EXPECT_EQ(emu::calls()["execute"], 1);
#endif
}

#ifndef SHERD_ON_DEVICE

class CudnnRefusal : public testing::Test {
  protected:
    void SetUp() override {
        emu::device_options = {};
        emu::reset_devices();
        emu::forget_calls();
    }
    void TearDown() override {
        emu::device_options = {};
        emu::fail_call("", 0);
    }
    /// Runs it as `auto` and as `cudnn`: what the first says besides, the number of its passes by cuDNN, and the error of the second.
    struct Outcome {
        std::string notice, error;
        long passes;
    };
    static Outcome outcome(
        const Case& c, DType type, const std::function<void()>& before = [] {}) {
        Outcome found;
        testing::internal::CaptureStderr();
        {
            before();
            Both both;
            expect_as_cpu(both, c, run(both, c, type));
            found.passes = emu::calls()["execute"];
        }
        found.notice = testing::internal::GetCapturedStderr();
        emu::reset_devices();
        try {
            before();
            Both both({.index = 0, .memory_limit = 0, .tf32 = false, .attention = AttentionBy::cudnn});
            (void)run(both, c, type);
        } catch (const DeviceError& error) {
            found.error = error.what();
        }
        return found;
    }
    const Case plain{"plain", {20, 9}, 3, 4, 2, 64};
};

void expect_in(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST_F(CudnnRefusal, OfFp32) {
    const Outcome found = outcome(plain, DType::f32);
    EXPECT_EQ(found.passes, 0);
    EXPECT_EQ(found.notice, "");
    expect_in(found.error, "bf16 and fp16");
}

TEST_F(CudnnRefusal, OfHeadsOfOtherSizes) {
    const Outcome found = outcome({"heads of 12", {20, 9}, 3, 4, 2, 12}, DType::bf16);
    EXPECT_EQ(found.passes, 0);
    EXPECT_EQ(found.notice, "");
    expect_in(found.error, "12, is no multiple of 8");
}

TEST_F(CudnnRefusal, OfManyShortDocumentsBesideALongOne) {
    Case unlike{"unlike", {1024}, 3, 1, 1, 8};
    unlike.lengths.resize(70, 1);
    const Outcome found = outcome(unlike, DType::bf16);
    EXPECT_EQ(found.passes, 0);
    expect_in(found.notice, "the forward pass of attention of some micro-batches of rank 0 is own kernels' instead of cuDNN's: many short");
    EXPECT_EQ(found.error, "") << "it is not the model that is refused";
}

TEST_F(CudnnRefusal, OfGradientsOnAmpereAlone) {
    emu::device_options.capability = 80;
    const Outcome found = outcome(plain, DType::bf16);
    EXPECT_EQ(found.passes, 1);
    expect_in(found.notice, "the backward pass of attention is own kernels' instead of cuDNN's: validate: Deterministic algorithm");
    expect_in(found.error, "device.attention = cudnn, and cuDNN does not serve the backward pass");
}

TEST_F(CudnnRefusal, OfOldGpusAndLibraries) {
    emu::device_options.cudnn = 91001;
    Outcome found = outcome(plain, DType::bf16);
    EXPECT_EQ(found.passes, 0);
    expect_in(found.error, "cuDNN 9.10.1 is loaded, and 9.10.2 is the oldest");
    expect_in(found.error, "rank 0");
    emu::device_options.cudnn = 91900;
    emu::device_options.capability = 75;
    emu::reset_devices();
    EXPECT_EQ(make_cuda_backend({})->description().find("cuDNN"), std::string::npos);
    EXPECT_THROW((void)make_cuda_backend({.index = 0, .memory_limit = 0, .tf32 = false, .attention = AttentionBy::cudnn}), DeviceError);
    emu::device_options.capability = 90;
    expect_in(make_cuda_backend({})->description(), ", attention by cuDNN 9.19.0 where it serves");
}

TEST_F(CudnnRefusal, OfScratchThatTakesTooMuchOfTheGpu) {
    const AttentionShape shape{32, 8, 128, 0.1f};
    const auto any = make_cuda_backend({}),
               only = make_cuda_backend({.index = 0, .memory_limit = 0, .tf32 = false, .attention = AttentionBy::cudnn});
    testing::internal::CaptureStderr();
    EXPECT_EQ(any->attention_scratch(4096, 4096, shape, DType::bf16), 4096 * 32);
    EXPECT_EQ(any->attention_scratch(4096, 4096, shape, DType::f32), 4096 * 32);
    expect_in(testing::internal::GetCapturedStderr(), "more than 1/32 of the GPU's memory");
    EXPECT_GT(only->attention_scratch(4096, 4096, shape, DType::bf16), (std::int64_t{1} << 30) / 4);
    const AttentionShape unshared{32, 32, 128, 0.1f};
    EXPECT_GT(any->attention_scratch(4096, 256, unshared, DType::bf16), 16 * 32 * 256 * 256 / 2);
}

TEST_F(CudnnRefusal, OfPlansIsFailureOfCudnnAlone) {
    for (const char* call :
         {"validate", "build_operation_graph", "create_execution_plans", "check_support", "build_plans", "get_workspace_size"}) {
        const Outcome found = outcome(plain, DType::bf16, [&] { emu::fail_call(call, 1); });
        EXPECT_EQ(found.passes, 1) << call;
        emu::forget_calls();
        expect_in(found.notice, std::string("instead of cuDNN's: ") + call);
        expect_in(found.error, call);
    }
}

TEST_F(CudnnRefusal, OfCallsEndsTheRun) {
    for (const char* call : {"cudnnCreate", "cudnnSetStream", "execute"}) {
        for (const AttentionBy by : {AttentionBy::any, AttentionBy::cudnn}) {
            emu::reset_devices();
            emu::fail_call(call, 1);
            try {
                Both both({.index = 0, .memory_limit = 0, .tf32 = false, .attention = by});
                (void)run(both, plain, DType::bf16);
                FAIL() << call << ": nothing was noticed";
            } catch (const DeviceError& error) {
                expect_in(error.what(), call);
                expect_in(error.what(), "rank 0");
                expect_in(error.what(), "device.attention = own");
            }
        }
    }
}

TEST_F(CudnnRefusal, PlansAreBuiltOnceForMicroBatchesAlike) {
    Both both;
    (void)run(both, {"a", {40, 9, 3}, 40, 2, 2, 16}, DType::bf16);
    (void)run(both, {"b", {100, 9, 4, 3}, 0, 2, 2, 16}, DType::bf16);
    const long built = emu::calls()["build_plans"];
    (void)run(both, {"c", {101, 19, 5}, 0, 2, 2, 16}, DType::bf16);
    (void)run(both, {"a", {41, 10, 2}, 40, 2, 2, 16}, DType::bf16);
    EXPECT_EQ(emu::calls()["build_plans"], built);
    (void)run(both, {"d", {129}, 0, 2, 2, 16}, DType::bf16);
    EXPECT_GT(emu::calls()["build_plans"], built);
}

#endif

}  // namespace
}  // namespace sherd::tests
