#pragma once
/// The same operation on an emulated GPU, or on a real one (SHERD_ON_DEVICE), and on the CPU, from equal numbers, and how far apart they
/// are.
#ifndef SHERD_ON_DEVICE
#include "harness/fake_device.hpp"
#endif

#include "sherd/backend/backend.hpp"
#include "sherd/backend/devices.hpp"
#include "sherd/tensor/half.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace sherd::tests {

/// Bits of host memory as numbers and back.
inline std::vector<float> to_floats(const std::vector<unsigned char>& bytes, DType type) {
    std::vector<float> values;
    for (std::size_t i = 0; i < bytes.size(); i += size_of(type)) {
        float x = 0;
        std::uint16_t bits = 0;
        std::memcpy(type == DType::f32 ? static_cast<void*>(&x) : &bits, &bytes[i], size_of(type));
        values.push_back(type == DType::f32 ? x : type == DType::bf16 ? to_float(bfloat16{bits}) : to_float(float16{bits}));
    }
    return values;
}
inline std::vector<unsigned char> to_bytes(const std::vector<float>& values, DType type) {
    std::vector<unsigned char> bytes(values.size() * size_of(type));
    for (std::size_t i = 0; i < values.size(); ++i) {
        const std::uint16_t bits = type == DType::bf16 ? to_bfloat16(values[i]).bits : to_float16(values[i]).bits;
        std::memcpy(&bytes[i * size_of(type)], type == DType::f32 ? static_cast<const void*>(&values[i]) : &bits, size_of(type));
    }
    return bytes;
}

/// A backend with a stream, and memory that lives as long.
class Side {
  public:
    explicit Side(std::unique_ptr<Backend> made) : backend(std::move(made)), stream(backend->make_stream("compute")) {}
    void* place(const void* bytes, std::size_t count) {
        memory_.emplace_back(*backend, count, "test");
        backend->copy_to_device(*stream, memory_.back().data(), bytes, count);
        backend->synchronize(*stream);
        return memory_.back().data();
    }
    std::vector<unsigned char> read(const void* data, std::size_t count) const {
        std::vector<unsigned char> bytes(count);
        backend->copy_to_host(*stream, bytes.data(), data, count);
        backend->synchronize(*stream);
        return bytes;
    }
    std::unique_ptr<Backend> backend;

  private:
    std::vector<DeviceMemory> memory_;

  public:
    std::unique_ptr<Stream> stream;  ///< last: goes first
};

/// A matrix on both sides.
struct Twin {
    Tensor gpu, cpu;
    float* floats(bool on_gpu) const { return static_cast<float*>(on_gpu ? gpu.data : cpu.data); }
};

class Both {
  public:
    explicit Both(const CudaOptions& options = {}) : gpu(make_cuda_backend(options)), cpu(make_cpu_backend(1)) {}

    Twin matrix(std::int64_t rows, std::int64_t columns, DType type, const std::vector<float>& values) {
        const auto bytes = to_bytes(values, type);
        return {{gpu.place(bytes.data(), bytes.size()), type, rows, columns}, {cpu.place(bytes.data(), bytes.size()), type, rows, columns}};
    }
    Twin random(std::int64_t rows, std::int64_t columns, DType type, float scale = 1) {
        std::normal_distribution<float> draw;
        std::vector<float> values;
        for (std::int64_t i = 0; i < rows * columns; ++i) values.push_back(scale * draw(random_));
        return matrix(rows, columns, type, values);
    }
    Twin constant(std::int64_t rows, std::int64_t columns, DType type, float value) {
        return matrix(rows, columns, type, std::vector<float>(static_cast<std::size_t>(rows * columns), value));
    }
    /// Integers, as fp32 of the same bits.
    Twin integers(const std::vector<std::int32_t>& values) {
        const auto n = static_cast<std::int64_t>(values.size());
        return {{gpu.place(values.data(), values.size() * 4), DType::i32, 1, n},
                {cpu.place(values.data(), values.size() * 4), DType::i32, 1, n}};
    }

    /// operation(backend, stream, pick): on both sides; pick(twin) is the tensor of that side.
    template <class Operation>
    void run(Operation operation) {
        operation(*gpu.backend, *gpu.stream, [](const Twin& t) { return t.gpu; });
        operation(*cpu.backend, *cpu.stream, [](const Twin& t) { return t.cpu; });
        gpu.backend->synchronize(*gpu.stream);
        cpu.backend->synchronize(*cpu.stream);
    }

    /// Largest difference relative to the largest number; a NaN on one side alone is infinitely far.
    void expect_near(const Twin& t, double bound, const std::string& what) const {
        const auto a = to_floats(gpu.read(t.gpu.data, t.gpu.bytes()), t.gpu.dtype),
                   b = to_floats(cpu.read(t.cpu.data, t.cpu.bytes()), t.cpu.dtype);
        double worst = 0, largest = 1e-30;
        for (std::size_t i = 0; i < a.size(); ++i) {
            largest = std::max(largest, std::abs(static_cast<double>(b[i])));
            if (std::isnan(a[i]) != std::isnan(b[i])) worst = INFINITY;
            if (!std::isnan(b[i])) worst = std::max(worst, std::abs(static_cast<double>(a[i]) - b[i]));
        }
        EXPECT_LE(worst / largest, bound) << what;
        EXPECT_GT(largest, 1e-6) << what << ": nothing to compare";
    }

    Side gpu, cpu;

  private:
    std::mt19937 random_{7};
};

/// Rounding of results: a few units in the last place of the type.
inline double near(DType type) {
    return type == DType::f32 ? 2e-5 : 1.6e-2;
}

}  // namespace sherd::tests
