#pragma once
/// nvcuda::wmma for 16x16x16 tiles of half or bfloat16 with float accumulators.
///
/// Which lane holds which element is unspecified on devices and scrambled here, so that code which assumes a layout fails.
#include "cuda_emulation.hpp"

namespace nvcuda::wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment {
    static_assert(M == 16 && N == 16 && K == 16, "only 16x16x16");
    static constexpr int num_elements = 8;
    T x[num_elements];
};

namespace detail {

/// Row-major index in the tile of element i of a lane: a fixed permutation of 0..255.
constexpr int tile_index(unsigned lane, int i) {
    return static_cast<int>((lane * 8U + static_cast<unsigned>(i)) * 77U + 13U) & 255;
}

template <class T>
void check_tile(const T* p, unsigned ld, emu::Where where) {
    if (reinterpret_cast<std::uintptr_t>(p) % 32 != 0) emu::fail("wmma at %s:%u: tile not aligned to 32 B", emu::file(where), where.line);
    if (ld * sizeof(T) % 16 != 0) emu::fail("wmma at %s:%u: leading dimension not a multiple of 16 B", emu::file(where), where.line);
}

/// All lanes take part, yet memory is not ordered: reading what another lane stored needs __syncwarp.
inline void join(emu::Where where) {
    if (emu::exited_lanes() != 0) emu::fail("wmma at %s:%u in a warp with absent lanes", emu::file(where), where.line);
    emu::warp_collective(
        0xffffffffU, "wmma load or store", nullptr, [](void* const*, unsigned) {}, where);
}

inline std::size_t offset(int index, unsigned ld, bool row_major) {
    const unsigned row = static_cast<unsigned>(index) / 16, column = static_cast<unsigned>(index) % 16;
    return row_major ? std::size_t{row} * ld + column : std::size_t{column} * ld + row;
}

template <class A, class B>
struct Mma {
    fragment<accumulator, 16, 16, 16, float>* d;
    const A* a;
    const B* b;
    const fragment<accumulator, 16, 16, 16, float>* c;
};

template <class F>
void gather(float (&tile)[256], const F& f, unsigned lane) {
    for (int i = 0; i < 8; ++i) tile[tile_index(lane, i)] = static_cast<float>(f.x[i]);
}

}  // namespace detail

template <class F, class T>
void fill_fragment(F& f, T v) {
    for (auto& x : f.x) x = v;
}

template <class Use, class T, class Layout>
void load_matrix_sync(fragment<Use, 16, 16, 16, T, Layout>& f, const T* p, unsigned ld, emu::Where w = emu::Where::current()) {
    detail::check_tile(p, ld, w);
    for (int i = 0; i < 8; ++i) f.x[i] = p[detail::offset(detail::tile_index(emu::lane(), i), ld, std::is_same_v<Layout, row_major>)];
    detail::join(w);
}

inline void load_matrix_sync(fragment<accumulator, 16, 16, 16, float>& f, const float* p, unsigned ld, layout_t layout,
                             emu::Where w = emu::Where::current()) {
    detail::check_tile(p, ld, w);
    for (int i = 0; i < 8; ++i) f.x[i] = p[detail::offset(detail::tile_index(emu::lane(), i), ld, layout == mem_row_major)];
    detail::join(w);
}

inline void store_matrix_sync(float* p, const fragment<accumulator, 16, 16, 16, float>& f, unsigned ld, layout_t layout,
                              emu::Where w = emu::Where::current()) {
    detail::check_tile(p, ld, w);
    for (int i = 0; i < 8; ++i) p[detail::offset(detail::tile_index(emu::lane(), i), ld, layout == mem_row_major)] = f.x[i];
    detail::join(w);
}

template <class T, class LayoutA, class LayoutB>
void mma_sync(fragment<accumulator, 16, 16, 16, float>& d, const fragment<matrix_a, 16, 16, 16, T, LayoutA>& a,
              const fragment<matrix_b, 16, 16, 16, T, LayoutB>& b, const fragment<accumulator, 16, 16, 16, float>& c,
              emu::Where w = emu::Where::current()) {
    using Op = detail::Mma<std::remove_cvref_t<decltype(a)>, std::remove_cvref_t<decltype(b)>>;
    if (emu::exited_lanes() != 0) emu::fail("wmma at %s:%u in a warp with absent lanes", emu::file(w), w.line);
    Op op{&d, &a, &b, &c};
    emu::warp_collective(
        0xffffffffU, "mma_sync", &op,
        [](void* const operands[32], unsigned) {
            float ta[256], tb[256], tc[256];
            for (unsigned l = 0; l < 32; ++l) {
                const Op& o = *static_cast<const Op*>(operands[l]);
                detail::gather(ta, *o.a, l);
                detail::gather(tb, *o.b, l);
                detail::gather(tc, *o.c, l);
            }
            for (int i = 0; i < 16; ++i)
                for (int k = 0; k < 16; ++k)
                    for (int j = 0; j < 16; ++j) tc[i * 16 + j] += ta[i * 16 + k] * tb[k * 16 + j];
            for (unsigned l = 0; l < 32; ++l)
                for (int i = 0; i < 8; ++i) static_cast<const Op*>(operands[l])->d->x[i] = tc[detail::tile_index(l, i)];
        },
        w);
}

}  // namespace nvcuda::wmma
