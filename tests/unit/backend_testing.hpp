#pragma once
/// What the tests of device operations share: tensors from and to double, random numbers, gradients by central differences.
#include "sherd/backend/backend.hpp"
#include "sherd/tensor/half.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace sherd::testing {

using Values = std::vector<double>;

/// Normally distributed numbers that are exact in fp32 and, with DType::bf16, in bf16.
inline Values random_values(std::int64_t n, unsigned seed, double scale = 1.0, DType type = DType::f32) {
    std::mt19937 engine(seed);
    std::normal_distribution<double> normal(0.0, scale);
    Values values(static_cast<std::size_t>(n));
    for (auto& v : values) {
        const auto single = static_cast<float>(normal(engine));
        v = static_cast<double>(type == DType::bf16 ? to_float(to_bfloat16(single)) : single);
    }
    return values;
}

/// A backend and a compute stream.
struct Device {
    explicit Device(int threads = 2, StreamOrder order = StreamOrder::as_enqueued)
        : backend(make_cpu_backend(threads, order)), stream(backend->make_stream("compute")) {}
    Backend* operator->() const { return backend.get(); }
    std::unique_ptr<Backend> backend;
    std::unique_ptr<Stream> stream;
};

/// Device memory as a matrix that is written from and read as double.
class Matrix {
  public:
    Matrix(Device& device, std::int64_t rows, std::int64_t columns, DType type, const Values& values)
        : device_(&device),
          memory_(*device.backend, static_cast<std::size_t>(rows * columns) * size_of(type), "a test"),
          tensor_{memory_.data(), type, rows, columns} {
        EXPECT_EQ(static_cast<std::size_t>(tensor_.elements()), values.size());
        bytes_.resize(tensor_.bytes());
        for (std::size_t i = 0; i < values.size(); ++i) put(i, static_cast<float>(values[i]));
        if (!bytes_.empty()) device->copy_to_device(*device.stream, tensor_.data, bytes_.data(), bytes_.size());
    }
    Matrix(const Matrix&) = delete;
    Matrix& operator=(const Matrix&) = delete;
    ~Matrix() {
        try {
            (*device_)->synchronize(*device_->stream);  // enqueued operations may still use it
        } catch (const std::exception& error) {
            ADD_FAILURE() << "an operation failed and nobody asked: " << error.what();
        }
    }
    /// Filled with a number that no operation should leave behind.
    Matrix(Device& device, std::int64_t rows, std::int64_t columns, DType type = DType::f32)
        : Matrix(device, rows, columns, type, Values(static_cast<std::size_t>(rows * columns), 777.0)) {}

    operator Tensor() const { return tensor_; }
    float* floats() const { return tensor_.as<float>(); }

    /// After everything enqueued so far.
    const std::vector<unsigned char>& raw() {
        if (!bytes_.empty()) (*device_)->copy_to_host(*device_->stream, bytes_.data(), tensor_.data, bytes_.size());
        (*device_)->synchronize(*device_->stream);
        return bytes_;
    }
    Values read() {
        raw();
        Values values(static_cast<std::size_t>(tensor_.elements()));
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(get(i));
        return values;
    }

  private:
    template <class T>
    T at(std::size_t i) const {
        T value;
        std::memcpy(&value, bytes_.data() + i * sizeof(T), sizeof(T));
        return value;
    }
    float get(std::size_t i) const {
        if (tensor_.dtype == DType::f32) return at<float>(i);
        return tensor_.dtype == DType::bf16 ? to_float(at<bfloat16>(i)) : to_float(at<float16>(i));
    }
    template <class T>
    void set(std::size_t i, T value) {
        std::memcpy(bytes_.data() + i * sizeof(T), &value, sizeof(T));
    }
    void put(std::size_t i, float value) {
        if (tensor_.dtype == DType::f32) set(i, value);
        if (tensor_.dtype == DType::bf16) set(i, to_bfloat16(value));
        if (tensor_.dtype == DType::f16) set(i, to_float16(value));
    }

    Device* device_;
    DeviceMemory memory_;
    Tensor tensor_;
    std::vector<unsigned char> bytes_;
};

/// 32-bit integers in device memory.
class Integers {
  public:
    Integers(Device& device, std::vector<std::int32_t> values)
        : values_(std::move(values)), memory_(*device.backend, std::max<std::size_t>(values_.size(), 1) * 4, "a test") {
        device->copy_to_device(*device.stream, memory_.data(), values_.data(), values_.size() * 4);
        device->synchronize(*device.stream);
    }
    const std::int32_t* data() const { return memory_.as<const std::int32_t>(); }
    std::int32_t operator[](std::int64_t i) const { return values_[static_cast<std::size_t>(i)]; }

  private:
    std::vector<std::int32_t> values_;
    DeviceMemory memory_;
};

inline double largest(const Values& values) {
    double most = 0;
    for (const double v : values) most = std::max(most, std::abs(v));
    return most;
}

/// Every element within `tolerance` of the largest expected one.
inline void expect_near(const Values& actual, const Values& expected, double tolerance, const std::string& what) {
    ASSERT_EQ(actual.size(), expected.size()) << what;
    const double bound = tolerance * largest(expected);
    for (std::size_t i = 0; i < actual.size(); ++i) {
        ASSERT_FALSE(std::isnan(actual[i])) << what << "[" << i << "]";
        ASSERT_NEAR(actual[i], expected[i], bound) << what << "[" << i << "]";
    }
}

/// `actual` against central differences of f at x (h = 1e-5: error about 1e-9), at `samples` elements spread over x, within `tolerance` of
/// the largest.
inline void expect_gradient(const std::function<double(const Values&)>& f, Values x, const Values& actual, double tolerance,
                            const std::string& what, std::size_t samples = 64) {
    ASSERT_EQ(x.size(), actual.size()) << what;
    const double h = 1e-5;
    const std::size_t step = std::max<std::size_t>(1, x.size() / samples) | 1u;
    Values expected;
    for (std::size_t i = 0; i < x.size(); i += step) {
        const double here = x[i];
        x[i] = here + h;
        const double above = f(x);
        x[i] = here - h;
        const double below = f(x);
        x[i] = here;
        expected.push_back((above - below) / (2 * h));
    }
    const double bound = tolerance * std::max(largest(actual), largest(expected)) + 1e-8;
    for (std::size_t n = 0; n < expected.size(); ++n) ASSERT_NEAR(actual[n * step], expected[n], bound) << what << "[" << n * step << "]";
}

inline double dot(const Values& a, const Values& b) {
    double total = 0;
    for (std::size_t i = 0; i < a.size(); ++i) total += a[i] * b[i];
    return total;
}

}  // namespace sherd::testing
