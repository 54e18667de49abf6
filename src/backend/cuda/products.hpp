#pragma once
/// Products of matrices by cuBLASLt. The algorithm of a shape is what cuBLASLt's heuristic names first, asked once and kept: never chosen
/// by timing, so that every run and every rank with the same GPU takes the same one and gets the same bits.
#include "backend/cuda/stream.hpp"

#include "sherd/tensor/tensor.hpp"

#include <array>
#include <compare>
#include <cstdint>
#include <cublasLt.h>
#include <map>
#include <memory>

namespace sherd::cuda {

/// What a compiled product depends on. Sizes are those of a column-major product: to [m, n] = left [m, k] right [k, n].
struct ProductKey {
    std::int64_t m, n, k;
    DType to, left, right;
    bool left_transposed, right_transposed, accumulate;
    std::array<std::uint32_t, 3> alignments;  ///< of to, left, right, in bytes, at most 256
    std::uint32_t bias_alignment;             ///< of what is added to each row of the program's (column of cuBLASLt's) result; 0: nothing
    auto operator<=>(const ProductKey&) const = default;
};

class Products {
  public:
    /// Device memory that a stream with products needs as scratch: what cuBLAS itself takes on Hopper; more brings nothing.
    static constexpr std::size_t workspace_bytes = std::size_t{32} << 20;

    /// tf32: of products of fp32. Throws DeviceError.
    explicit Products(bool tf32);
    ~Products();
    Products(const Products&) = delete;
    Products& operator=(const Products&) = delete;

    /// y [rows, outputs] = x [rows, inputs] w^T + bias, where that has data; of the type of y, the only one that cuBLASLt takes here
    void forward(CudaStream& stream, const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& bias);
    /// dx = dy w, or += with accumulate
    void backward_input(CudaStream& stream, const Tensor& dx, const Tensor& dy, const Tensor& w, bool accumulate);
    /// dw = dy^T x, or += with accumulate
    void backward_weight(CudaStream& stream, const Tensor& dw, const Tensor& dy, const Tensor& x, bool accumulate);

  private:
    struct Compiled;
    void multiply(CudaStream& stream, const char* operation, const Tensor& to, const Tensor& left, bool left_transposed,
                  const Tensor& right, bool right_transposed, bool accumulate, const void* bias = nullptr);
    const Compiled& find(const char* operation, const ProductKey& key, const void* bias);
    const Compiled& compile(const char* operation, const ProductKey& key, const void* bias);

    bool tf32_;
    cublasLtHandle_t handle_ = nullptr;
    std::map<ProductKey, std::unique_ptr<const Compiled>> compiled_;
};

}  // namespace sherd::cuda
