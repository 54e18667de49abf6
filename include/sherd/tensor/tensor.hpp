#pragma once
/// Non-owning views of device memory.
#include "sherd/tensor/dtype.hpp"

#include <cstdint>

namespace sherd {

/// A dense row-major matrix in device memory, [rows, columns]; a vector has one row. Copies are views of the same memory.
struct Tensor {
    void* data = nullptr;
    DType dtype = DType::f32;
    std::int64_t rows = 0, columns = 0;

    std::int64_t elements() const noexcept { return rows * columns; }
    std::uint64_t bytes() const noexcept { return static_cast<std::uint64_t>(elements()) * size_of(dtype); }
    /// Element pointer; T must be the C++ type of dtype (float, bfloat16, ...).
    template <class T>
    T* as() const noexcept {
        return static_cast<T*>(data);
    }
    /// Rows [first, first + count).
    Tensor slice(std::int64_t first, std::int64_t count) const noexcept {
        auto* bytes_at = static_cast<unsigned char*>(data) + static_cast<std::uint64_t>(first * columns) * size_of(dtype);
        return {bytes_at, dtype, count, columns};
    }
};

/// Documents packed one after another into the rows of a micro-batch.
struct Documents {
    const std::int32_t* offsets = nullptr;  ///< device, [count + 1], rising from 0; rows from offsets[count] on belong to no document
    std::int64_t count = 0;
    std::int64_t longest = 0;  ///< rows of the longest document
};

/// Rows that a micro-batch of `tokens` tokens is computed with: rounded up (by at most an eighth, or to 16) so that the number of distinct
/// GEMM shapes stays bounded. Surplus rows hold finite numbers in activations and zeros in gradients (decoder.hpp).
std::int64_t bucket_rows(std::int64_t tokens) noexcept;

}  // namespace sherd
