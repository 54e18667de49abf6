#include "backend/cpu/kernels.hpp"
#include "backend/cpu/vector_math.hpp"

#include <cstring>

namespace sherd::cpu {

namespace {

template <class To, class From>
void cast_elements(To* to, const From* from, std::int64_t n) {
    for_blocks(n, element_block, [=](std::int64_t first, std::int64_t last) {
        widest([=]() SHERD_INLINE {
#pragma omp simd
            for (std::int64_t i = first; i < last; ++i) to[i] = from_float<To>(to_float(from[i]));
        });
    });
}

/// The compiler must know whether y is read, or it reads y in either case.
template <bool accumulate, class T, class X>
void add_elements(T* y, const X* x, std::int64_t n) {
    for_blocks(n, element_block, [=](std::int64_t first, std::int64_t last) {
        widest([=]() SHERD_INLINE {
#pragma omp simd
            for (std::int64_t i = first; i < last; ++i) y[i] = from_float<T>((accumulate ? to_float(y[i]) : 0.0f) + to_float(x[i]));
        });
    });
}

/// Calls f.operator()<T>() with the C++ type of numbers as they are stored; `operation` is for the message where they are none.
template <class F>
void with_stored_type(DType type, const char* operation, const F& f) {
    switch (type) {
        case DType::f32:
            return f.template operator()<float>();
        case DType::bf16:
            return f.template operator()<bfloat16>();
        case DType::f16:
            return f.template operator()<float16>();
        default:
            throw DeviceError("{}: no conversion from or to {} on the CPU", operation, name_of(type));
    }
}

template <class T>
SHERD_INLINE inline void rotate(T* x, const float* cosine, const float* sine, std::int64_t half, float sign) {
#pragma omp simd
    for (std::int64_t i = 0; i < half; ++i) {
        const float a = to_float(x[i]), b = to_float(x[half + i]), s = sign * sine[i];
        x[i] = from_float<T>(a * cosine[i] - b * s);
        x[half + i] = from_float<T>(b * cosine[i] + a * s);
    }
}

template <class T>
void swiglu_forward_typed(T* out, const T* gate, const T* up, std::int64_t n) {
    for_blocks(n, element_block, [=](std::int64_t first, std::int64_t last) {
        widest([=]() SHERD_INLINE {
#pragma omp simd
            for (std::int64_t i = first; i < last; ++i) {
                const float g = to_float(gate[i]);
                out[i] = from_float<T>(g / (1.0f + exponential(-g)) * to_float(up[i]));
            }
        });
    });
}

template <class T>
void swiglu_backward_typed(T* gate, T* up, T* dout, std::int64_t n) {
    for_blocks(n, element_block, [=](std::int64_t first, std::int64_t last) {
        widest([=]() SHERD_INLINE {
#pragma omp simd
            for (std::int64_t i = first; i < last; ++i) {
                const float g = to_float(gate[i]), u = to_float(up[i]), d = to_float(dout[i]);
                const float sigmoid = 1.0f / (1.0f + exponential(-g)), silu = g * sigmoid;
                gate[i] = from_float<T>(d * u * (sigmoid + silu * (1.0f - sigmoid)));
                up[i] = from_float<T>(d * silu);
                dout[i] = from_float<T>(silu * u);
            }
        });
    });
}

}  // namespace

void cast(Tensor to, Tensor from) {
    if (to.dtype == from.dtype) {
        if (to.bytes() > 0 && to.data != from.data) std::memmove(to.data, from.data, to.bytes());
        return;
    }
    with_stored_type(to.dtype, "cast", [&]<class To>() {
        with_stored_type(from.dtype, "cast", [&]<class From>() { cast_elements(to.as<To>(), from.as<const From>(), from.elements()); });
    });
}

void add(Tensor y, Tensor x, bool accumulate) {
    with_compute_type(y.dtype, [&]<class T>() {
        with_stored_type(x.dtype, "add", [&]<class X>() {
            accumulate ? add_elements<true>(y.as<T>(), x.as<const X>(), x.elements())
                       : add_elements<false>(y.as<T>(), x.as<const X>(), x.elements());
        });
    });
}

void rope(Tensor x, std::int64_t heads, const float* cosine, const float* sine, const std::int32_t* positions, bool inverse) {
    const std::int64_t head_dim = x.columns / heads, half = head_dim / 2;
    const float sign = inverse ? -1.0f : 1.0f;
    with_compute_type(x.dtype, [&]<class T>() {
        T* const data = x.as<T>();
        for_blocks(x.rows, 8, [=](std::int64_t first, std::int64_t last) {
            widest([=]() SHERD_INLINE {
                for (std::int64_t t = first; t < last; ++t) {
                    const std::int64_t angle = positions[t] * half;
                    T* const row = data + t * heads * head_dim;
                    for (std::int64_t h = 0; h < heads; ++h) rotate(row + h * head_dim, cosine + angle, sine + angle, half, sign);
                }
            });
        });
    });
}

void swiglu_forward(Tensor out, Tensor gate, Tensor up) {
    with_compute_type(out.dtype,
                      [&]<class T>() { swiglu_forward_typed(out.as<T>(), gate.as<const T>(), up.as<const T>(), out.elements()); });
}

void swiglu_backward(Tensor gate, Tensor up, Tensor dout) {
    with_compute_type(gate.dtype, [&]<class T>() { swiglu_backward_typed(gate.as<T>(), up.as<T>(), dout.as<T>(), gate.elements()); });
}

}  // namespace sherd::cpu
