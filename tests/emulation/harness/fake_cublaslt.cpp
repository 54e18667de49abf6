/// Stand-in for libcublasLt: its handles, and products by fake_product.cpp as operations of their stream.
///
/// Stricter than the library where that is silent: an algorithm must be used with the shapes, alignments and workspace that it was chosen
/// for; two products may use one workspace only in order.
#include "execution.hpp"
#include "fake_product.hpp"
#include "fake_state.hpp"

#include <algorithm>
#include <cstring>
#include <cublasLt.h>
#include <type_traits>

namespace {

using emu::Fault;

struct Description {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    const void* bias = nullptr;
    std::int32_t bias_type = -1;
};
struct Layout {
    cudaDataType_t type;
    cublasLtOrder_t order = CUBLASLT_ORDER_COL;
    std::uint64_t rows, columns;
    std::int64_t leading;
    std::int32_t batches = 1;
    std::int64_t stride = 0;
};
struct Preference {
    std::uint64_t workspace = 0;
    std::uint32_t alignment[4] = {256, 256, 256, 256};
    std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
};
/// What stands in a cublasLtMatmulAlgo_t.
struct Algorithm {
    std::uint64_t shapes;
    std::uint32_t alignment[4];
    std::uint32_t bias_alignment;  ///< of the address that the description had
    std::uint64_t workspace;
};

template <class T, class Opaque>
T& in(Opaque* opaque) {
    static_assert(sizeof(T) <= sizeof(Opaque) && std::is_trivially_copyable_v<T>);
    if (opaque == nullptr) throw Fault("cuBLASLt: a null descriptor");
    return *reinterpret_cast<T*>(opaque->data);
}
template <class T, class Opaque>
const T& in(const Opaque* opaque) {
    return in<T>(const_cast<Opaque*>(opaque));
}

template <class T>
cublasStatus_t set(T& field, const void* value, std::size_t bytes) {
    if (bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&field, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}
template <class T>
cublasStatus_t get(const T& field, void* value, std::size_t bytes, std::size_t* written) {
    if (written != nullptr) *written = sizeof(T);
    if (bytes == 0) return CUBLAS_STATUS_SUCCESS;
    if (bytes < sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(value, &field, sizeof(T));
    return CUBLAS_STATUS_SUCCESS;
}

emu::Matrix matrix(const Layout& l, const void* data) {
    return {const_cast<void*>(data), l.type, l.rows, l.columns, static_cast<std::uint64_t>(l.leading), l.order == CUBLASLT_ORDER_ROW};
}

std::uint64_t hash(const Description& d, const Layout* const (&all)[4]) {
    std::uint64_t h = static_cast<std::uint64_t>(d.a) + 3 * static_cast<std::uint64_t>(d.b) + 9 * static_cast<std::uint64_t>(d.epilogue) +
                      7919 * static_cast<std::uint64_t>(d.compute);
    for (const Layout* l : all)
        for (const std::uint64_t v : {static_cast<std::uint64_t>(l->type), static_cast<std::uint64_t>(l->order), l->rows, l->columns,
                                      static_cast<std::uint64_t>(l->leading), static_cast<std::uint64_t>(l->batches)})
            h = (h ^ v) * 0x9e3779b97f4a7c15U + (h >> 29);
    return h;
}

std::uint32_t alignment_of(const void* address) {
    const std::uintptr_t bits = reinterpret_cast<std::uintptr_t>(address) | 256U;
    return static_cast<std::uint32_t>(bits & (~bits + 1));
}

/// Bytes from the first to the last element.
std::size_t extent(const emu::Matrix& m) {
    const std::uint64_t lines = m.row_major ? m.rows : m.columns, each = m.row_major ? m.columns : m.rows;
    return lines == 0 || each == 0 ? 0 : ((lines - 1) * m.leading + each) * emu::size_of(m.type);
}

bool fits(const Description& d, const Layout& a, const Layout& b, const Layout& c, const Layout& out) {
    const auto rows = d.a == CUBLAS_OP_N ? a.rows : a.columns, inner = d.a == CUBLAS_OP_N ? a.columns : a.rows;
    const auto columns = d.b == CUBLAS_OP_N ? b.columns : b.rows, other = d.b == CUBLAS_OP_N ? b.rows : b.columns;
    const auto tight = [](const Layout& l) {
        return l.leading >= static_cast<std::int64_t>(l.order == CUBLASLT_ORDER_ROW ? l.columns : l.rows);
    };
    return inner == other && out.rows == rows && out.columns == columns && c.rows == rows && c.columns == columns && a.type == b.type &&
           c.type == out.type && tight(a) && tight(b) && tight(c) && tight(out) && rows > 0 && columns > 0 && inner > 0;
}

/// Table of type combinations in cuBLAS's documentation, as far as the program computes in them.
bool supported(const Description& d, const Layout& a, const Layout& out) {
    const bool narrow = a.type == CUDA_R_16F || a.type == CUDA_R_16BF;
    if (d.scale != CUDA_R_32F || (d.epilogue != CUBLASLT_EPILOGUE_DEFAULT && d.epilogue != CUBLASLT_EPILOGUE_BIAS)) return false;
    if (d.epilogue == CUBLASLT_EPILOGUE_BIAS) {
        if (d.bias == nullptr) throw Fault("cuBLASLt: the epilogue adds a bias, and the description has no address of one");
        if (d.bias_type >= 0 && d.bias_type != static_cast<std::int32_t>(out.type)) return false;
    }
    if (d.compute == CUBLAS_COMPUTE_32F)
        return (a.type == CUDA_R_32F && out.type == CUDA_R_32F) || (narrow && (out.type == a.type || out.type == CUDA_R_32F));
    return d.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && a.type == CUDA_R_32F && out.type == CUDA_R_32F;
}

}  // namespace

// what gives back fails after it has given back, as in CUDA, where most such errors are those of earlier work
#define EMU_BLAS_CALL(status) \
    if (emu::call_fails(__func__)) return status
#define EMU_BLAS_FIELD(attribute, field) \
    case attribute:                      \
        return EMU_BLAS_DO(field)

struct cublasLtContext {
    int open = 1;
};

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
    EMU_BLAS_CALL(CUBLAS_STATUS_NOT_INITIALIZED);
    *handle = new cublasLtContext;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    delete handle;
    EMU_BLAS_CALL(CUBLAS_STATUS_NOT_INITIALIZED);
    return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion() {
    return CUBLAS_VERSION;
}
size_t cublasLtGetCudartVersion() {
    return CUDART_VERSION;
}
const char* cublasLtGetStatusName(cublasStatus_t s) {
    return s == CUBLAS_STATUS_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
           : s == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                              : "CUBLAS_STATUS";
}
const char* cublasLtGetStatusString(cublasStatus_t s) {
    return s == CUBLAS_STATUS_SUCCESS         ? "success"
           : s == CUBLAS_STATUS_NOT_SUPPORTED ? "the requested functionality is not supported"
                                              : "failure";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* out, cublasComputeType_t compute, cudaDataType_t scale) {
    EMU_BLAS_CALL(CUBLAS_STATUS_ALLOC_FAILED);
    *out = new cublasLtMatmulDescOpaque_t{};
    in<Description>(*out) = Description{.compute = compute, .scale = scale};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) {
    delete d;
    EMU_BLAS_CALL(CUBLAS_STATUS_INVALID_VALUE);
    return CUBLAS_STATUS_SUCCESS;
}
#define EMU_BLAS_DO(field) set(d.field, value, bytes)
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t a, const void* value,
                                              size_t bytes) {
    EMU_BLAS_CALL(CUBLAS_STATUS_INVALID_VALUE);
    Description& d = in<Description>(desc);
    switch (a) {
        EMU_BLAS_FIELD(CUBLASLT_MATMUL_DESC_TRANSA, a);
        EMU_BLAS_FIELD(CUBLASLT_MATMUL_DESC_TRANSB, b);
        EMU_BLAS_FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
        EMU_BLAS_FIELD(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
        EMU_BLAS_FIELD(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, bias_type);
        default:
            throw Fault("the stand-in of cublasLtMatmulDescSetAttribute knows no attribute " + std::to_string(a));
    }
}
#undef EMU_BLAS_DO

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* out, cudaDataType type, uint64_t rows, uint64_t columns,
                                          int64_t leading) {
    EMU_BLAS_CALL(CUBLAS_STATUS_ALLOC_FAILED);
    *out = new cublasLtMatrixLayoutOpaque_t{};
    in<Layout>(*out) = Layout{.type = type, .rows = rows, .columns = columns, .leading = leading};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) {
    delete l;
    EMU_BLAS_CALL(CUBLAS_STATUS_INVALID_VALUE);
    return CUBLAS_STATUS_SUCCESS;
}
#define EMU_BLAS_DO(field) set(l.field, value, bytes)
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t a, const void* value,
                                                size_t bytes) {
    EMU_BLAS_CALL(CUBLAS_STATUS_INVALID_VALUE);
    Layout& l = in<Layout>(layout);
    switch (a) {
        EMU_BLAS_FIELD(CUBLASLT_MATRIX_LAYOUT_TYPE, type);
        EMU_BLAS_FIELD(CUBLASLT_MATRIX_LAYOUT_ORDER, order);
        EMU_BLAS_FIELD(CUBLASLT_MATRIX_LAYOUT_ROWS, rows);
        EMU_BLAS_FIELD(CUBLASLT_MATRIX_LAYOUT_COLS, columns);
        EMU_BLAS_FIELD(CUBLASLT_MATRIX_LAYOUT_LD, leading);
        EMU_BLAS_FIELD(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, batches);
        EMU_BLAS_FIELD(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride);
        default:
            throw Fault("the stand-in of cublasLtMatrixLayoutSetAttribute knows no attribute " + std::to_string(a));
    }
}
#undef EMU_BLAS_DO

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* out) {
    EMU_BLAS_CALL(CUBLAS_STATUS_ALLOC_FAILED);
    *out = new cublasLtMatmulPreferenceOpaque_t{};
    in<Preference>(*out) = Preference{};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
    delete p;
    EMU_BLAS_CALL(CUBLAS_STATUS_INVALID_VALUE);
    return CUBLAS_STATUS_SUCCESS;
}
#define EMU_BLAS_DO(field) set(p.field, value, bytes)
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref, cublasLtMatmulPreferenceAttributes_t a,
                                                    const void* value, size_t bytes) {
    EMU_BLAS_CALL(CUBLAS_STATUS_INVALID_VALUE);
    Preference& p = in<Preference>(pref);
    switch (a) {
        EMU_BLAS_FIELD(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
        EMU_BLAS_FIELD(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
        EMU_BLAS_FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment[0]);
        EMU_BLAS_FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment[1]);
        EMU_BLAS_FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment[2]);
        EMU_BLAS_FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment[3]);
        default:
            throw Fault("the stand-in of cublasLtMatmulPreferenceSetAttribute knows no attribute " + std::to_string(a));
    }
}
#undef EMU_BLAS_DO

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t pref, int wanted, cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
    EMU_BLAS_CALL(CUBLAS_STATUS_NOT_SUPPORTED);
    *found = 0;
    const auto& operation = in<Description>(desc);
    const Layout* const all[4] = {&in<Layout>(a), &in<Layout>(b), &in<Layout>(c), &in<Layout>(d)};
    if (wanted < 1 || !fits(operation, *all[0], *all[1], *all[2], *all[3])) return CUBLAS_STATUS_INVALID_VALUE;
    if (!supported(operation, *all[0], *all[3])) return CUBLAS_STATUS_NOT_SUPPORTED;
    const auto& p = in<Preference>(pref);
    if ((p.reductions & (CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE)) != 0)
        throw Fault("cuBLASLt may sum the parts of a product in no fixed order, or rounded to the type of the result");
    Algorithm chosen{hash(operation, all), {}, alignment_of(operation.bias), std::min<std::uint64_t>(p.workspace, 64 << 10)};
    std::ranges::copy(p.alignment, chosen.alignment);
    results[0] = {};
    static_assert(sizeof chosen <= sizeof results[0].algo.data);
    std::memcpy(results[0].algo.data, &chosen, sizeof chosen);
    results[0].workspaceSize = chosen.workspace;
    results[0].state = CUBLAS_STATUS_SUCCESS;
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha, const void* a, cublasLtMatrixLayout_t la,
                              const void* b, cublasLtMatrixLayout_t lb, const void* beta, const void* c, cublasLtMatrixLayout_t lc, void* d,
                              cublasLtMatrixLayout_t ld, const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
    EMU_BLAS_CALL(CUBLAS_STATUS_EXECUTION_FAILED);
    if (emu::call_fails("cublasLtMatmul out of memory")) return CUBLAS_STATUS_ALLOC_FAILED;
    const auto& operation = in<Description>(desc);
    const Layout* const all[4] = {&in<Layout>(la), &in<Layout>(lb), &in<Layout>(lc), &in<Layout>(ld)};
    if (!fits(operation, *all[0], *all[1], *all[2], *all[3]) || !supported(operation, *all[0], *all[3])) return CUBLAS_STATUS_INVALID_VALUE;
    if (algorithm == nullptr) throw Fault("cublasLtMatmul without an algorithm: it would search for one at every call");
    const auto& chosen = *reinterpret_cast<const Algorithm*>(algorithm->data);
    if (chosen.shapes != hash(operation, all)) throw Fault("cublasLtMatmul with an algorithm that was chosen for other shapes or types");
    const void* const data[4] = {a, b, c, d};
    for (int i = 0; i < 4; ++i)
        if (reinterpret_cast<std::uintptr_t>(data[i]) % chosen.alignment[i] != 0)
            throw Fault(std::string("cublasLtMatmul: matrix ") + "ABCD"[i] + " is not aligned to the " +
                        std::to_string(chosen.alignment[i]) + " bytes that its algorithm was chosen for");
    if (operation.epilogue == CUBLASLT_EPILOGUE_BIAS && alignment_of(operation.bias) < chosen.bias_alignment)
        throw Fault("cublasLtMatmul: the bias is not aligned to the " + std::to_string(chosen.bias_alignment) +
                    " bytes of the one that its algorithm was chosen for");
    if (workspace_bytes < chosen.workspace || (chosen.workspace > 0 && workspace == nullptr)) return CUBLAS_STATUS_INVALID_VALUE;
    emu::Product product{.a = matrix(*all[0], a), .b = matrix(*all[1], b), .c = matrix(*all[2], c), .d = matrix(*all[3], d)};
    product.transpose_a = operation.a != CUBLAS_OP_N;
    product.transpose_b = operation.b != CUBLAS_OP_N;
    product.tf32 = operation.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    std::memcpy(&product.alpha, alpha, sizeof(float));
    std::memcpy(&product.beta, beta, sizeof(float));
    std::vector<emu::Range> ranges{{a, extent(product.a), false}, {b, extent(product.b), false}, {d, extent(product.d), true}};
    if (product.beta != 0) ranges.push_back({c, extent(product.c), false});
    if (operation.epilogue == CUBLASLT_EPILOGUE_BIAS) {
        product.bias = operation.bias;
        product.bias_type = operation.bias_type < 0 ? product.d.type : static_cast<cudaDataType_t>(operation.bias_type);
        ranges.push_back({product.bias, product.d.rows * emu::size_of(product.bias_type), false});
    }
    if (chosen.workspace > 0) ranges.push_back({workspace, chosen.workspace, true});
    emu::enqueue(stream, "cublasLtMatmul", ranges, [product, workspace, bytes = chosen.workspace] {
        if (bytes > 0) std::memset(workspace, 0xff, bytes);
        emu::multiply(product);
        return true;
    });
    return CUBLAS_STATUS_SUCCESS;
}
}
