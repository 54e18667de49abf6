#pragma once
#include "harness/execution.hpp"
#include "harness/fake_device.hpp"

#include <cstdlib>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <random>
#include <vector>

/// Stand-in for device memory, for kernels alone: aligned like cudaMalloc's, of exact size, filled with NaN, known to the access checker.
template <class T>
class Buffer {
  public:
    explicit Buffer(std::size_t n) : n_(n) {
        emu::device_options.default_stream = true;  // such memory is of no device, and its kernels run at once
        if (posix_memalign(reinterpret_cast<void**>(&data_), 256, bytes() + (n == 0 ? 1 : 0)) != 0) throw std::bad_alloc();
        std::memset(static_cast<void*>(data_), 0xff, bytes());
        emu::add_buffer(data_, bytes());
    }
    explicit Buffer(const std::vector<T>& v) : Buffer(v.size()) {
        if (!v.empty()) std::memcpy(static_cast<void*>(data_), v.data(), bytes());
    }
    ~Buffer() {
        emu::remove_buffer(data_);
        std::free(data_);
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    operator T*() { return data_; }
    operator const T*() const { return data_; }
    T* get() { return data_; }
    std::size_t size() const { return n_; }
    std::vector<T> host() const { return std::vector<T>(data_, data_ + n_); }

  private:
    std::size_t bytes() const { return n_ * sizeof(T); }
    T* data_ = nullptr;
    std::size_t n_;
};

template <class T>
float as_float(T x) {
    return static_cast<float>(x);
}
template <class T>
T rounded(float x);
template <>
inline float rounded<float>(float x) {
    return x;
}
template <>
inline __half rounded<__half>(float x) {
    return __float2half_rn(x);
}
template <>
inline __nv_bfloat16 rounded<__nv_bfloat16>(float x) {
    return __float2bfloat16_rn(x);
}

template <class T>
constexpr float kRelative = 2e-5F;
template <>
inline constexpr float kRelative<__half> = 2e-3F;
template <>
inline constexpr float kRelative<__nv_bfloat16> = 1.2e-2F;

template <class T>
std::vector<T> normal(std::size_t n, unsigned seed, float scale = 1.0F) {
    std::mt19937 random(seed);
    std::normal_distribution<float> draw;
    std::vector<T> v;
    for (std::size_t i = 0; i < n; ++i) v.push_back(rounded<T>(draw(random) * scale));
    return v;
}
