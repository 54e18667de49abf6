#include "fake_product.hpp"

#include "execution.hpp"

#include <bit>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector>

namespace emu {
namespace {

float load(const void* data, cudaDataType_t type, std::size_t i) {
    switch (type) {
        case CUDA_R_32F:
            return static_cast<const float*>(data)[i];
        case CUDA_R_16F:
            return __half2float(static_cast<const __half*>(data)[i]);
        case CUDA_R_16BF:
            return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
        default:
            throw Fault("the stand-in of cuBLASLt knows no type " + std::to_string(type));
    }
}

void store(void* data, cudaDataType_t type, std::size_t i, float x) {
    switch (type) {
        case CUDA_R_32F:
            static_cast<float*>(data)[i] = x;
            return;
        case CUDA_R_16F:
            static_cast<__half*>(data)[i] = __float2half_rn(x);
            return;
        default:
            static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(x);
    }
}

std::size_t place(const Matrix& m, std::size_t row, std::size_t column) {
    return m.row_major ? row * m.leading + column : column * m.leading + row;
}

/// To nearest, ties away from zero, as cvt.rna.tf32.f32.
float to_tf32(float x) {
    return std::bit_cast<float>((std::bit_cast<std::uint32_t>(x) + 0x1000U) & 0xffffe000U);
}

/// op(m) as dense floats, row after row.
std::vector<float> dense(const Matrix& m, bool transpose, bool tf32) {
    const std::size_t rows = transpose ? m.columns : m.rows, columns = transpose ? m.rows : m.columns;
    std::vector<float> all(rows * columns);
    for (std::size_t i = 0; i < rows; ++i)
        for (std::size_t j = 0; j < columns; ++j) {
            const float x = load(m.data, m.type, transpose ? place(m, j, i) : place(m, i, j));
            all[i * columns + j] = tf32 ? to_tf32(x) : x;
        }
    return all;
}

}  // namespace

std::size_t size_of(cudaDataType_t type) {
    return type == CUDA_R_32F ? 4 : 2;
}

void multiply(const Product& p) {
    const std::size_t rows = p.d.rows, columns = p.d.columns, inner = p.transpose_a ? p.a.rows : p.a.columns;
    const std::vector<float> a = dense(p.a, p.transpose_a, p.tf32), b = dense(p.b, p.transpose_b, p.tf32);
    std::vector<float> sums(columns);
    for (std::size_t i = 0; i < rows; ++i) {
        sums.assign(columns, 0.0F);
        for (std::size_t k = 0; k < inner; ++k) {
            const float x = a[i * inner + k];
            const float* row = b.data() + k * columns;
            for (std::size_t j = 0; j < columns; ++j) sums[j] += x * row[j];
        }
        const float bias = p.bias != nullptr ? load(p.bias, p.bias_type, i) : 0.0F;
        for (std::size_t j = 0; j < columns; ++j) {
            const float old = p.beta != 0 ? p.beta * load(p.c.data, p.c.type, place(p.c, i, j)) : 0.0F;
            store(p.d.data, p.d.type, place(p.d, i, j), p.alpha * sums[j] + old + bias);
        }
    }
}

}  // namespace emu
