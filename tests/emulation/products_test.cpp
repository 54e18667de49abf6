// The stand-in of cuBLASLt against sums in double, and what it is strict about.
#include "harness/execution.hpp"
#include "harness/fake_device.hpp"
#include "harness/injection.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <random>
#include <vector>

namespace {

struct Shape {
    std::uint64_t m, n, k;
    bool transpose_a, transpose_b, row_major_c;
};

/// One product on device memory that the test fills and reads through copies.
template <class T, class U>
class Product {
  public:
    Product(Shape s, float beta, bool bias) : s_(s), beta_(beta) {
        emu::device_options.default_stream = false;
        emu::reset_devices();
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        cublasLtCreate(&handle_);
        cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F);
        set(CUBLASLT_MATMUL_DESC_TRANSA, s.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
        set(CUBLASLT_MATMUL_DESC_TRANSB, s.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
        a = fill<T>(s.m * s.k, host_a, 1);
        b = fill<T>(s.n * s.k, host_b, 2);
        c = fill<U>(s.m * s.n, host_c, 3);
        if (bias) {
            bias_ = fill<U>(s.m, host_bias, 4);
            set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
            set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(bias_));
        }
        cudaMalloc(&workspace, workspace_bytes);
        layouts();
        cublasLtMatmulPreferenceCreate(&preference);
        const std::uint64_t most = workspace_bytes;
        cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most);
        const std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
        cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions);
        int found = 0;
        EXPECT_EQ(cublasLtMatmulAlgoGetHeuristic(handle_, description, la, lb, lc, lc, preference, 1, &best, &found),
                  CUBLAS_STATUS_SUCCESS);
        EXPECT_EQ(found, 1);
    }
    ~Product() {
        cublasLtMatmulPreferenceDestroy(preference);
        for (auto l : {la, lb, lc}) cublasLtMatrixLayoutDestroy(l);
        cublasLtMatmulDescDestroy(description);
        cublasLtDestroy(handle_);
        cudaStreamSynchronize(stream);
        emu::reset_devices();
    }
    Product(const Product&) = delete;

    cublasStatus_t run(cudaStream_t on, std::size_t offset_a = 0) {
        const float one = 1;
        return cublasLtMatmul(handle_, description, &one, a + offset_a, la, b, lb, &beta_, c, lc, c, lc, &best.algo, workspace,
                              workspace_bytes, on);
    }
    void check() {
        std::vector<U> out(host_c.size());
        cudaMemcpyAsync(out.data(), c, out.size() * sizeof(U), cudaMemcpyDeviceToHost, stream);
        cudaStreamSynchronize(stream);
        for (std::uint64_t i = 0; i < s_.m; ++i)
            for (std::uint64_t j = 0; j < s_.n; ++j) {
                double sum = 0;
                for (std::uint64_t k = 0; k < s_.k; ++k)
                    sum += static_cast<double>(static_cast<float>(host_a[s_.transpose_a ? i * s_.k + k : k * s_.m + i])) *
                           static_cast<float>(host_b[s_.transpose_b ? k * s_.n + j : j * s_.k + k]);
                const std::uint64_t at = s_.row_major_c ? i * s_.n + j : j * s_.m + i;
                if (beta_ != 0) sum += beta_ * static_cast<double>(static_cast<float>(host_c[at]));
                if (bias_ != nullptr) sum += static_cast<double>(static_cast<float>(host_bias[i]));
                ASSERT_NEAR(static_cast<float>(out[at]), sum, (sizeof(U) == 4 ? 1e-5 : 1e-2) * (1 + std::abs(sum)));
            }
    }

    static constexpr std::size_t workspace_bytes = 4096;
    cudaStream_t stream = nullptr;
    cublasLtMatmulDesc_t description = nullptr;
    cublasLtMatrixLayout_t la = nullptr, lb = nullptr, lc = nullptr;
    cublasLtMatmulPreference_t preference = nullptr;
    cublasLtMatmulHeuristicResult_t best{};
    T *a = nullptr, *b = nullptr;
    U* c = nullptr;
    void* workspace = nullptr;

  private:
    template <class V>
    void set(cublasLtMatmulDescAttributes_t attribute, V value) {
        EXPECT_EQ(cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof value), CUBLAS_STATUS_SUCCESS);
    }
    template <class V>
    static cudaDataType_t type() {
        return std::is_same_v<V, float> ? CUDA_R_32F : std::is_same_v<V, __half> ? CUDA_R_16F : CUDA_R_16BF;
    }
    template <class V>
    V* fill(std::size_t n, std::vector<V>& host, unsigned seed) {
        std::mt19937 random(seed);
        std::normal_distribution<float> draw;
        for (std::size_t i = 0; i < n; ++i) host.push_back(static_cast<V>(draw(random)));
        void* p = nullptr;
        cudaMalloc(&p, n * sizeof(V));
        cudaMemcpyAsync(p, host.data(), n * sizeof(V), cudaMemcpyHostToDevice, stream);
        return static_cast<V*>(p);
    }
    void layouts() {
        const auto make = [](cublasLtMatrixLayout_t& l, cudaDataType_t t, std::uint64_t rows, std::uint64_t columns, bool swap) {
            cublasLtMatrixLayoutCreate(&l, t, swap ? columns : rows, swap ? rows : columns,
                                       static_cast<std::int64_t>(swap ? columns : rows));
        };
        make(la, type<T>(), s_.m, s_.k, s_.transpose_a);
        make(lb, type<T>(), s_.k, s_.n, s_.transpose_b);
        make(lc, type<U>(), s_.m, s_.n, false);
        if (!s_.row_major_c) return;
        const cublasLtOrder_t order = CUBLASLT_ORDER_ROW;
        const auto leading = static_cast<std::int64_t>(s_.n);
        cublasLtMatrixLayoutSetAttribute(lc, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order);
        cublasLtMatrixLayoutSetAttribute(lc, CUBLASLT_MATRIX_LAYOUT_LD, &leading, sizeof leading);
    }

    Shape s_;
    float beta_;
    cublasLtHandle_t handle_ = nullptr;
    U* bias_ = nullptr;
    std::vector<T> host_a, host_b;
    std::vector<U> host_c, host_bias;
};

template <class T, class U>
void check(Shape s, float beta, bool bias) {
    SCOPED_TRACE(testing::Message() << s.m << "x" << s.n << "x" << s.k);
    Product<T, U> p(s, beta, bias);
    EXPECT_EQ(p.run(p.stream), CUBLAS_STATUS_SUCCESS);
    p.check();
}

TEST(Products, MatchSumsInDouble) {
    for (const bool ta : {false, true})
        for (const bool tb : {false, true}) {
            check<float, float>({7, 5, 33, ta, tb, false}, 0, false);
            check<__half, __half>({1, 13, 64, ta, tb, true}, 0, true);
            check<__nv_bfloat16, float>({31, 2, 17, ta, tb, false}, 1, false);
            check<__nv_bfloat16, __nv_bfloat16>({8, 8, 8, ta, tb, false}, 0.5F, true);
        }
}

template <class F>
std::string fault_of(F f) {
    try {
        f();
    } catch (const emu::Fault& e) {
        return e.what();
    }
    return "no fault";
}

TEST(Products, WantWhatTheirAlgorithmWasChosenFor) {
    Product<float, float> p({16, 16, 8, false, false, false}, 0, false);
    EXPECT_NE(fault_of([&] { p.run(p.stream, 1); }).find("matrix A is not aligned to the 256 bytes"), std::string::npos);
    const cublasOperation_t transposed = CUBLAS_OP_T;
    cublasLtMatmulDescSetAttribute(p.description, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    EXPECT_EQ(p.run(p.stream), CUBLAS_STATUS_INVALID_VALUE) << "8 by 16 times 8 by 16";
}

TEST(Products, WantABiasLikeTheOneTheirAlgorithmWasChosenFor) {
    using Half = __nv_bfloat16;
    Product<Half, Half> p({16, 4, 8, true, false, false}, 0, true);
    void* elsewhere = nullptr;
    cudaMalloc(&elsewhere, 256);
    const void* bias = static_cast<char*>(elsewhere) + 2;
    const auto give = [&] {
        cublasLtMatmulDescSetAttribute(p.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
        return p.run(p.stream);
    };
    EXPECT_NE(fault_of(give).find("the bias is not aligned to the 256 bytes"), std::string::npos);
    bias = nullptr;
    EXPECT_NE(fault_of(give).find("no address"), std::string::npos);
    bias = elsewhere;
    const std::int32_t wide = CUDA_R_32F;
    cublasLtMatmulDescSetAttribute(p.description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &wide, sizeof wide);
    EXPECT_EQ(give(), CUBLAS_STATUS_INVALID_VALUE) << "a bias of another type than the result";
}

TEST(Products, ShareAWorkspaceInOrderOnly) {
    Product<float, float> p({4, 4, 4, false, false, false}, 0, false);
    p.run(p.stream);
    cudaStream_t other = nullptr;
    cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    void* elsewhere = nullptr;
    cudaMalloc(&elsewhere, 64);
    p.c = static_cast<float*>(elsewhere);
    cudaEvent_t inputs = nullptr;
    cudaEventCreateWithFlags(&inputs, cudaEventDisableTiming);
    EXPECT_NE(fault_of([&] { p.run(other); }).find("is not ordered after"), std::string::npos);
    cudaEventRecord(inputs, p.stream);
    cudaStreamWaitEvent(other, inputs, 0);
    EXPECT_EQ(fault_of([&] { p.run(other); }), "no fault");
    cudaStreamSynchronize(other);
}

TEST(Products, UnknownTypesAreRefused) {
    Product<float, float> p({4, 4, 4, false, false, false}, 0, false);
    cublasLtMatrixLayout_t narrow = nullptr;
    cublasLtMatrixLayoutCreate(&narrow, CUDA_R_16F, 4, 4, 4);
    int found = 0;
    cublasLtMatmulHeuristicResult_t result{};
    EXPECT_EQ(cublasLtMatmulAlgoGetHeuristic(nullptr, p.description, p.la, p.lb, narrow, narrow, p.preference, 1, &result, &found),
              CUBLAS_STATUS_NOT_SUPPORTED);
    EXPECT_EQ(found, 0);
    cublasLtMatrixLayoutDestroy(narrow);
}

TEST(Injection, TheNthCallOfANameFails) {
    emu::fail_call("cudaMalloc", 2);
    void* p = nullptr;
    EXPECT_EQ(cudaMalloc(&p, 16), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&p, 16), cudaErrorMemoryAllocation);
    EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
    EXPECT_EQ(cudaMalloc(&p, 16), cudaSuccess);
    emu::fail_call("cublasLtCreate", 1);
    cublasLtHandle_t handle = nullptr;
    EXPECT_EQ(cublasLtCreate(&handle), CUBLAS_STATUS_NOT_INITIALIZED);
    EXPECT_EQ(emu::calls().at("cublasLtCreate") > 0, true);
    emu::reset_devices();
}

}  // namespace
