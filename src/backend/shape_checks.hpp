#pragma once
/// What operations check of the shapes they are given: a wrong call must be an error on the host, not a wrong address on the device.
#include "sherd/backend/backend.hpp"
#include "sherd/runtime/error.hpp"

#include <string>

namespace sherd::shapes {

inline std::string text(const Tensor& t) {
    return fmt::format("[{}, {}] {}", t.rows, t.columns, name_of(t.dtype));
}

inline void expect(bool holds, const char* operation, const std::string& what) {
    if (!holds) throw DeviceError("{}: the shapes do not fit: {}", operation, what);
}

inline void expect_same(const char* operation, const Tensor& a, const Tensor& b) {
    if (a.rows != b.rows || a.columns != b.columns || a.dtype != b.dtype) expect(false, operation, text(a) + " against " + text(b));
}

inline void expect_product(const char* operation, const Tensor& y, const Tensor& x, const Tensor& w) {
    const bool fits = y.rows == x.rows && y.columns == w.rows && x.columns == w.columns;
    if (!fits) expect(false, operation, fmt::format("outputs {}, inputs {}, weights {}", text(y), text(x), text(w)));
}

/// A bias of a product's outputs, or none.
inline void expect_bias(const char* operation, const Tensor& y, const Tensor& bias) {
    const bool fits = bias.data == nullptr || (bias.rows == 1 && bias.columns == y.columns && bias.dtype == y.dtype);
    if (!fits) expect(false, operation, text(y) + " with bias " + text(bias));
}

inline void expect_attention(const char* operation, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionShape& s) {
    const bool fits = s.kv_heads > 0 && s.heads % s.kv_heads == 0 && q.columns == s.heads * s.head_dim &&
                      k.columns == s.kv_heads * s.head_dim && q.rows == k.rows && q.dtype == k.dtype;
    if (!fits) expect(false, operation, fmt::format("queries {}, keys {}, {} of {} heads", text(q), text(k), s.kv_heads, s.heads));
    expect_same(operation, k, v);
}

}  // namespace sherd::shapes
