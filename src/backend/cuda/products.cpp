// Row-major [rows, columns] is column-major [columns, rows]: what the program calls y = x w^T is y^T = w x^T to cuBLASLt, without any
// transposition in memory.
#include "backend/cuda/products.hpp"

#include "backend/cuda/blas_check.hpp"

#include "sherd/runtime/error.hpp"

#include <cstddef>
#include <utility>

namespace sherd::cuda {

namespace {

/// Handles of cuBLASLt, freed at the end.
template <class Handle, cublasStatus_t (*destroy)(Handle)>
class Owned {
  public:
    Owned() = default;
    ~Owned() {
        if (handle_ != nullptr) (void)destroy(handle_);
    }
    Owned(const Owned&) = delete;
    Owned& operator=(const Owned&) = delete;
    Handle get() const noexcept { return handle_; }
    Handle* out() noexcept { return &handle_; }

  private:
    Handle handle_ = nullptr;
};
using Description = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

cudaDataType_t type_of(DType type) {
    switch (type) {
        case DType::f32:
            return CUDA_R_32F;
        case DType::bf16:
            return CUDA_R_16BF;
        case DType::f16:
            return CUDA_R_16F;
        default:
            throw DeviceError("products of {} are not computed on a GPU", name_of(type));
    }
}

std::uint32_t alignment_of(const void* address) noexcept {
    const auto bits = reinterpret_cast<std::uintptr_t>(address) | 256u;
    return static_cast<std::uint32_t>(bits & (~bits + 1));
}

template <class T>
void set(const Description& description, cublasLtMatmulDescAttributes_t attribute, T value) {
    SHERD_CUBLAS(cublasLtMatmulDescSetAttribute(description.get(), attribute, &value, sizeof value));
}
template <class T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    SHERD_CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value));
}

/// As the matrix lies in memory, before it is transposed.
void make(Layout& layout, DType type, std::int64_t rows, std::int64_t columns, bool transposed) {
    if (transposed) std::swap(rows, columns);
    SHERD_CUBLAS(cublasLtMatrixLayoutCreate(layout.out(), type_of(type), static_cast<std::uint64_t>(rows),
                                            static_cast<std::uint64_t>(columns), rows));
}

std::string text(const ProductKey& k) {
    return fmt::format("[{}, {}] {} by [{}, {}] {} into {}{}{}", k.n, k.k, name_of(k.right), k.k, k.m, name_of(k.left), name_of(k.to),
                       k.accumulate ? ", added" : "", k.bias_alignment > 0 ? " with bias" : "");
}

}  // namespace

struct Products::Compiled {
    Description description;
    Layout to, left, right;
    cublasLtMatmulAlgo_t algorithm{};
};

Products::Products(bool tf32) : tf32_(tf32) {
    SHERD_CUBLAS(cublasLtCreate(&handle_));
}

Products::~Products() {
    compiled_.clear();
    (void)cublasLtDestroy(handle_);
}

const Products::Compiled& Products::find(const char* operation, const ProductKey& key, const void* bias) {
    const auto found = compiled_.find(key);
    const Compiled& product = found != compiled_.end() ? *found->second : compile(operation, key, bias);
    // a call reads its description before it returns, so that one description serves biases at many addresses
    if (bias != nullptr) set(product.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    return product;
}

const Products::Compiled& Products::compile(const char* operation, const ProductKey& key, const void* bias) {
    auto made = std::make_unique<Compiled>();
    const bool tf32 = tf32_ && key.left == DType::f32 && key.right == DType::f32;
    SHERD_CUBLAS(cublasLtMatmulDescCreate(made->description.out(), tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(made->description, CUBLASLT_MATMUL_DESC_TRANSA, key.left_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(made->description, CUBLASLT_MATMUL_DESC_TRANSB, key.right_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (bias != nullptr) {
        set(made->description, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
        set(made->description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(type_of(key.to)));
        set(made->description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);  // the heuristic reads its alignment off it
    }
    make(made->to, key.to, key.m, key.n, false);
    make(made->left, key.left, key.m, key.k, key.left_transposed);
    make(made->right, key.right, key.k, key.n, key.right_transposed);

    Preference preference;
    SHERD_CUBLAS(cublasLtMatmulPreferenceCreate(preference.out()));
    set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{workspace_bytes});
    // parts of a sum over k meet in fp32 in the workspace, in a fixed order; the other schemes round them to the type of the result
    set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.alignments[1]);
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.alignments[2]);
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.alignments[0]);
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.alignments[0]);

    cublasLtMatmulHeuristicResult_t best{};
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle_, made->description.get(), made->left.get(), made->right.get(),
                                                                 made->to.get(), made->to.get(), preference.get(), 1, &best, &found);
    if (status != CUBLAS_STATUS_SUCCESS || found == 0)
        fail_cublas(status, "cublasLtMatmulAlgoGetHeuristic", __FILE__, __LINE__,
                    fmt::format("no algorithm for {} ({}): {}", operation, text(key),
                                status == CUBLAS_STATUS_SUCCESS ? "none was found" : words_of(status)));
    made->algorithm = best.algo;
    return *compiled_.emplace(key, std::move(made)).first->second;
}

void Products::multiply(CudaStream& stream, const char* operation, const Tensor& to, const Tensor& left, bool left_transposed,
                        const Tensor& right, bool right_transposed, bool accumulate, const void* bias) {
    if (to.rows == 0 || to.columns == 0) return;
    // column-major, so that `columns` are rows
    const std::int64_t k = left_transposed ? left.columns : left.rows;
    const ProductKey key{to.columns,
                         to.rows,
                         k,
                         to.dtype,
                         left.dtype,
                         right.dtype,
                         left_transposed,
                         right_transposed,
                         accumulate,
                         {alignment_of(to.data), alignment_of(left.data), alignment_of(right.data)},
                         bias == nullptr ? 0 : alignment_of(bias)};
    if (stream.scratch().bytes() < workspace_bytes)
        throw DeviceError("{} on stream '{}', which has no workspace for products", operation, stream.name());
    const Compiled& product = find(operation, key, bias);
    const float one = 1, beta = accumulate ? 1.0f : 0.0f;
    const cublasStatus_t status = cublasLtMatmul(handle_, product.description.get(), &one, left.data, product.left.get(), right.data,
                                                 product.right.get(), &beta, to.data, product.to.get(), to.data, product.to.get(),
                                                 &product.algorithm, stream.scratch().data(), workspace_bytes, stream.get());
    if (status != CUBLAS_STATUS_SUCCESS)
        fail_cublas(status, "cublasLtMatmul", __FILE__, __LINE__, fmt::format("{} ({}): {}", operation, text(key), words_of(status)));
}

void Products::forward(CudaStream& stream, const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& bias) {
    multiply(stream, "linear_forward", y, w, true, x, false, false, bias.data);
}

void Products::backward_input(CudaStream& stream, const Tensor& dx, const Tensor& dy, const Tensor& w, bool accumulate) {
    multiply(stream, "linear_backward_input", dx, w, false, dy, false, accumulate);
}

void Products::backward_weight(CudaStream& stream, const Tensor& dw, const Tensor& dy, const Tensor& x, bool accumulate) {
    multiply(stream, "linear_backward_weight", dw, x, false, dy, true, accumulate);
}

}  // namespace sherd::cuda
