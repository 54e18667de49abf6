#pragma once
/// What the tests of kernels share: memory of a device that is exact in size and full of NaN, results in several orders of threads, bounds.
/// They use the CUDA run time alone, so that they run on a device as well (SHERD_ON_DEVICE), where the order of threads is its own.
#include "backend/cpu/kernels.hpp"
#include "backend/cuda/check.hpp"
#include "backend/cuda/kernels.hpp"

#include "sherd/tensor/half.hpp"

#ifndef SHERD_ON_DEVICE
#include "harness/execution.hpp"
#endif

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace sherd::cuda::testing {

using Values = std::vector<double>;
using Bytes = std::vector<unsigned char>;

inline float rounded(double x, DType type) {
    const auto single = static_cast<float>(x);
    return type == DType::f32 ? single : type == DType::bf16 ? to_float(to_bfloat16(single)) : to_float(to_float16(single));
}

/// Largest relative error of rounding to a type.
inline double rounding_of(DType type) {
    return type == DType::f32 ? 0x1p-24 : type == DType::bf16 ? 0x1p-8 : 0x1p-11;
}

/// Normally distributed numbers that the type represents.
inline Values random_values(std::int64_t n, unsigned seed, DType type = DType::f32, double scale = 1.0) {
    std::mt19937 engine(seed);
    std::normal_distribution<double> normal(0.0, scale);
    Values values(static_cast<std::size_t>(n));
    for (double& v : values) v = static_cast<double>(rounded(normal(engine), type));
    return values;
}

inline Bytes to_bytes(const Values& values, DType type) {
    Bytes bytes(values.size() * size_of(type));
    for (std::size_t i = 0; i < values.size(); ++i) {
        const auto single = static_cast<float>(values[i]);
        const std::uint16_t half = type == DType::bf16 ? to_bfloat16(single).bits : to_float16(single).bits;
        std::memcpy(&bytes[i * size_of(type)], type == DType::f32 ? static_cast<const void*>(&single) : &half, size_of(type));
    }
    return bytes;
}

inline Values to_values(const Bytes& bytes, DType type) {
    Values values(bytes.size() / size_of(type));
    for (std::size_t i = 0; i < values.size(); ++i) {
        float single = 0;
        std::uint16_t half = 0;
        std::memcpy(type == DType::f32 ? static_cast<void*>(&single) : &half, &bytes[i * size_of(type)], size_of(type));
        values[i] = static_cast<double>(type == DType::f32    ? single
                                        : type == DType::bf16 ? to_float(bfloat16{half})
                                                              : to_float(float16{half}));
    }
    return values;
}

/// For destructors: a fault of a kernel, which the emulation throws from whatever waits, has been or will be reported by the test itself.
template <class F>
void quietly(const F& f) noexcept {
    try {
        f();
    } catch (...) {  // NOLINT(bugprone-empty-catch)
    }
}

/// The stream of a test.
class Stream {
  public:
    Stream() { SHERD_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
    Stream(const Stream&) = delete;
    ~Stream() {
        quietly([&] { (void)cudaStreamSynchronize(stream_); });
        quietly([&] { (void)cudaStreamDestroy(stream_); });
    }
    operator cudaStream_t() const { return stream_; }

  private:
    cudaStream_t stream_ = nullptr;
};

/// Device memory of exact size, with NaN in every floating type where nothing is given.
class Memory {
  public:
    Memory(Stream& stream, std::size_t bytes) : stream_(&stream), size_(bytes) {
        SHERD_CUDA(cudaMalloc(&data_, std::max<std::size_t>(bytes, 1)));
        SHERD_CUDA(cudaMemsetAsync(data_, 0xff, std::max<std::size_t>(bytes, 1), stream));
    }
    Memory(Stream& stream, const Bytes& bytes) : Memory(stream, bytes.size()) {
        if (size_ > 0) SHERD_CUDA(cudaMemcpyAsync(data_, bytes.data(), size_, cudaMemcpyHostToDevice, stream));
        SHERD_CUDA(cudaStreamSynchronize(stream));
    }
    Memory(const Memory&) = delete;
    Memory(Memory&& other) noexcept : stream_(other.stream_), data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
    ~Memory() {
        quietly([&] { (void)cudaStreamSynchronize(*stream_); });
        quietly([&] { (void)cudaFree(data_); });
    }
    unsigned char* data() const { return static_cast<unsigned char*>(data_); }
    Bytes read() const {
        Bytes bytes(size_);
        if (size_ > 0) SHERD_CUDA(cudaMemcpyAsync(bytes.data(), data_, size_, cudaMemcpyDeviceToHost, *stream_));
        SHERD_CUDA(cudaStreamSynchronize(*stream_));
        return bytes;
    }

  private:
    Stream* stream_;
    void* data_ = nullptr;
    std::size_t size_;
};

/// A matrix in device memory; `shift` elements stand before it, so that its address is not a multiple of 16 bytes.
class Matrix {
  public:
    Matrix(Stream& stream, std::int64_t rows, std::int64_t columns, DType type, const Values& values, std::int64_t shift = 0)
        : memory_(stream, to_bytes(before(values, shift), type)), tensor_{memory_.data() + shift_bytes(shift, type), type, rows, columns} {}
    Matrix(Stream& stream, std::int64_t rows, std::int64_t columns, DType type, std::int64_t shift = 0)
        : memory_(stream, static_cast<std::size_t>(rows * columns + shift) * size_of(type)),
          tensor_{memory_.data() + shift_bytes(shift, type), type, rows, columns} {}
    operator Tensor() const { return tensor_; }
    float* floats() const { return tensor_.as<float>(); }
    Bytes read() const {
        Bytes all = memory_.read();
        all.erase(all.begin(), all.end() - static_cast<std::ptrdiff_t>(tensor_.bytes()));
        return all;
    }

  private:
    static Values before(const Values& values, std::int64_t shift) {
        Values all(static_cast<std::size_t>(shift), 0.0);
        all.insert(all.end(), values.begin(), values.end());
        return all;
    }
    static std::size_t shift_bytes(std::int64_t shift, DType type) { return static_cast<std::size_t>(shift) * size_of(type); }
    Memory memory_;
    Tensor tensor_;
};

class Integers {
  public:
    Integers(Stream& stream, const std::vector<std::int32_t>& values) : memory_(stream, bytes_of(values)) {}
    const std::int32_t* data() const { return reinterpret_cast<const std::int32_t*>(memory_.data()); }

  private:
    static Bytes bytes_of(const std::vector<std::int32_t>& values) {
        const auto* at = reinterpret_cast<const unsigned char*>(values.data());
        return {at, at + values.size() * sizeof(std::int32_t)};
    }
    Memory memory_;
};

/// The same matrix in host memory, for the CPU backend.
class HostMatrix {
  public:
    HostMatrix(std::int64_t rows, std::int64_t columns, DType type, const Values& values)
        : bytes_(to_bytes(values, type)), tensor_{bytes_.data(), type, rows, columns} {}
    HostMatrix(std::int64_t rows, std::int64_t columns, DType type)
        : HostMatrix(rows, columns, type, Values(static_cast<std::size_t>(rows * columns), 0.0)) {}
    HostMatrix(const HostMatrix&) = delete;
    operator Tensor() const { return tensor_; }
    float* floats() const { return tensor_.as<float>(); }
    Values read() const { return to_values(bytes_, tensor_.dtype); }

  private:
    Bytes bytes_;
    Tensor tensor_;
};

/// Results of run(stream), a vector of Bytes, which must be bit-equal in three orders of threads and blocks.
template <class Run>
std::vector<Bytes> in_all_orders(const Run& run) {
    std::vector<Bytes> first;
    for (const unsigned seed : {0u, 1u, 2u}) {
#ifndef SHERD_ON_DEVICE
        emu::options.seed = seed;
#endif
        Stream stream;
        std::vector<Bytes> results = run(stream);
        if (seed == 0) first = results;
        EXPECT_EQ(results, first) << "the result depends on the order of threads";
    }
#ifndef SHERD_ON_DEVICE
    emu::options.seed = 0;
#endif
    return first;
}

inline double largest(const Values& values) {
    double most = 0;
    for (const double v : values) most = std::max(most, std::abs(v));
    return most;
}

/// Every element within its own rounding to `type` and `tolerance` of the largest expected one.
inline void expect_near(const Values& actual, const Values& expected, DType type, double tolerance, const std::string& what) {
    ASSERT_EQ(actual.size(), expected.size()) << what;
    const double common = tolerance * largest(expected) + 1e-30;
    for (std::size_t i = 0; i < actual.size(); ++i) {
        ASSERT_FALSE(std::isnan(actual[i])) << what << "[" << i << "]";
        ASSERT_NEAR(actual[i], expected[i], common + 1.01 * rounding_of(type) * std::abs(expected[i])) << what << "[" << i << "]";
    }
}

inline constexpr DType all_types[] = {DType::f32, DType::bf16, DType::f16};
/// What the CPU backend computes in.
inline bool on_cpu(DType type) {
    return type != DType::f16;
}

}  // namespace sherd::cuda::testing
