#pragma once
/// cp.async as cuda_pipeline_primitives.h offers it, which does not compile for the host. A copy takes place only when its thread
/// waits for it, the latest moment allowed: code that forgets to wait reads what was there before.
#include "cuda_emulation.hpp"

inline void __pipeline_memcpy_async(void* to, const void* from, std::size_t bytes, std::size_t zeros = 0,
                                    emu::Where w = emu::Where::current()) {
    if ((bytes != 4 && bytes != 8 && bytes != 16) || zeros > bytes)
        emu::fail("__pipeline_memcpy_async at %s:%u of %zu B", emu::file(w), w.line, bytes);
    if (reinterpret_cast<std::uintptr_t>(to) % bytes != 0 || reinterpret_cast<std::uintptr_t>(from) % bytes != 0) {
        emu::fail("__pipeline_memcpy_async at %s:%u: not aligned to %zu B", emu::file(w), w.line, bytes);
    }
    emu::copy_later({to, from, bytes, zeros});
}
inline void __pipeline_commit() {
    emu::commit_copies();
}
inline void __pipeline_wait_prior(std::size_t batches, emu::Where w = emu::Where::current()) {
    for (emu::Copy c; emu::next_copy(batches, c, w);) {  // done here, in the kernel's file, so that the accesses are examined
        for (std::size_t i = 0; i < c.bytes; i += 4) {
            auto* to = reinterpret_cast<std::uint32_t*>(static_cast<char*>(c.to) + i);
            *to = i < c.bytes - c.zeros ? *reinterpret_cast<const std::uint32_t*>(static_cast<const char*>(c.from) + i) : 0U;
        }
    }
}
