#pragma once
/// Fibers on Boost.Context, with guarded stacks and AddressSanitizer told of every switch.
#include <boost/context/detail/fcontext.hpp>

#include <cstddef>
#include <new>
#include <sys/mman.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) (void)0
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) (void)0
inline void __sanitizer_start_switch_fiber(void**, const void*, std::size_t) {}
inline void __sanitizer_finish_switch_fiber(void*, const void**, std::size_t*) {}
#endif

namespace emu {

/// Stacks in one mapping, a guard page below each, so that an overflow is a segmentation fault.
class StackArena {
  public:
    explicit StackArena(std::size_t count) : total_(count * kStride) {
        void* p = mmap(nullptr, total_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) throw std::bad_alloc();
        base_ = static_cast<char*>(p);
        for (std::size_t i = 0; i < count; ++i) mprotect(base_ + i * kStride, kGuard, PROT_NONE);
    }
    ~StackArena() { munmap(base_, total_); }
    StackArena(const StackArena&) = delete;

    static constexpr std::size_t bytes() { return kStride - kGuard; }
    char* stack(std::size_t i) const { return base_ + i * kStride + kGuard; }
    bool holds(const void* p) const { return p >= base_ && p < base_ + total_; }

  private:
#ifdef __SANITIZE_ADDRESS__
    static constexpr std::size_t kStride = 256 * 1024;
#else
    static constexpr std::size_t kStride = 64 * 1024;
#endif
    static constexpr std::size_t kGuard = 4096;
    std::size_t total_;
    char* base_ = nullptr;
};

class Fiber {
  public:
    /// Makes the fiber start in body, which must not return, at its next resume(); forgets where it stood.
    void restart(char* stack, void (*body)()) {
        low_ = stack;
        body_ = body;
        fake_ = nullptr;
        ASAN_UNPOISON_MEMORY_REGION(stack, StackArena::bytes());
        context_ = boost::context::detail::make_fcontext(stack + StackArena::bytes(), StackArena::bytes(), main);
    }
    /// Called on a thread's own stack: runs the fiber until it suspends.
    void resume() {
        void* fake = nullptr;
        __sanitizer_start_switch_fiber(&fake, low_, StackArena::bytes());
        context_ = boost::context::detail::jump_fcontext(context_, this).fctx;
        __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
    }
    /// Called on the fiber.
    void suspend() {
        __sanitizer_start_switch_fiber(&fake_, host_low_, host_bytes_);
        host_ = boost::context::detail::jump_fcontext(host_, nullptr).fctx;
        __sanitizer_finish_switch_fiber(fake_, &host_low_, &host_bytes_);
    }
    bool holds(const void* p) const { return p >= low_ && p < low_ + StackArena::bytes(); }

    bool busy = false;

  private:
    static void main(boost::context::detail::transfer_t from) {
        Fiber& self = *static_cast<Fiber*>(from.data);
        self.host_ = from.fctx;
        __sanitizer_finish_switch_fiber(nullptr, &self.host_low_, &self.host_bytes_);
        self.body_();
        __builtin_unreachable();
    }

    boost::context::detail::fcontext_t context_ = nullptr, host_ = nullptr;
    char* low_ = nullptr;
    void (*body_)() = nullptr;
    void* fake_ = nullptr;  // AddressSanitizer's record of the suspended stack
    const void* host_low_ = nullptr;
    std::size_t host_bytes_ = 0;
};

}  // namespace emu
