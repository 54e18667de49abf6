#pragma once
/// The arithmetic behind the stand-in of cuBLASLt.
#include <cstddef>
#include <cstdint>
#include <library_types.h>

namespace emu {

struct Matrix {
    void* data;
    cudaDataType_t type;  ///< CUDA_R_32F, CUDA_R_16F or CUDA_R_16BF
    std::uint64_t rows, columns, leading;
    bool row_major;
};
std::size_t size_of(cudaDataType_t type);

/// d = alpha * op(a) op(b) + beta * c + bias, products and sums in float over rising k, rounded once; bias by row of d.
struct Product {
    Matrix a, b, c, d;
    bool transpose_a = false, transpose_b = false;
    bool tf32 = false;  ///< a and b are rounded to 10 bits of mantissa
    float alpha = 1, beta = 0;
    const void* bias = nullptr;
    cudaDataType_t bias_type = CUDA_R_32F;
};
void multiply(const Product& product);

}  // namespace emu
