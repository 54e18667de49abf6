#pragma once
/// Runs CUDA kernels compiled as plain C++ on the CPU, one block at a time, each thread of the block on a fiber.
///
/// A broken rule of the execution model (divergent barrier, read of a lane that takes no part, ...) ends the launch with
/// emu::Fault.
#include <cstddef>
#include <cuda_runtime.h>
#include <functional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

/// Built-in variables of the running thread. Not zero initialized on purpose: .bss then holds no variable of the
/// emulation that a kernel reads, which lets access_check.cpp treat .bss as static shared memory.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace emu {

/// A place in a kernel's source. Not std::source_location, which clang 14, and with it clang-tidy 14, does not have.
struct Where {
    const char* path = "";
    unsigned line = 0;
    const char* function = "";
    static constexpr Where current(const char* path = __builtin_FILE(), unsigned line = __builtin_LINE(),
                                   const char* function = __builtin_FUNCTION()) {
        return {path, line, function};
    }
};

struct Fault : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Options {
    unsigned seed = 0;  ///< 0: blocks and threads run in ascending order; else in an order drawn from the seed
};
extern Options options;

/// For tests of the tests. Told of every barrier and wait: whether it is to be left out, as EMU_DELETE=FILE:LINE says.
bool left_out(const Where& where);
/// FILE:LINE of all that were told since it was last emptied; kept with EMU_PLACES only.
std::set<std::string>& places();

struct Launch {
    dim3 grid, block;
    std::size_t shared_bytes = 0;
    std::string name;
    const void* kernel = nullptr;
};

/// Dynamic shared memory that a kernel may have: 48 KiB, or what it was allowed last.
void allow_shared(const void* kernel, std::size_t bytes);
std::size_t allowed_shared(const void* kernel);

/// Calls call(arguments) in every thread of every block. Throws Fault. Serialized: static shared memory exists once.
/// [arguments, arguments + bytes) is what CUDA calls parameter space: readable, and no business of the access checker.
void run(const Launch& launch, const void* arguments, std::size_t bytes, void (*call)(const void*));

template <class F>
void run(const Launch& launch, const F& kernel) {
    run(launch, &kernel, sizeof kernel, [](const void* f) { (*static_cast<const F*>(f))(); });
}

/// Ends the launch from inside a kernel; never returns. Leaves the fiber where it stands instead of unwinding it, so that it can
/// be called where throwing is not allowed; hence formatted without allocation.
[[noreturn, gnu::format(printf, 1, 2)]] void fail(const char* format, ...);
inline const char* file(const Where& w) {
    const char* slash = __builtin_strrchr(w.path, '/');
    return slash ? slash + 1 : w.path;
}

struct Votes {
    int count, all, any;
};
Votes barrier(bool predicate, Where where);

/// Joins the lanes of `mask`; the last to arrive calls combine(operands, present lanes), which writes every lane's result.
/// A null combine is __syncwarp, the only warp operation that orders memory.
using Combine = void (*)(void* const operands[32], unsigned present);
void warp_collective(unsigned mask, const char* kind, void* operand, Combine combine, Where where);

struct Copy {
    void* to;
    const void* from;
    std::size_t bytes, zeros;
};
void copy_later(const Copy& copy);
void commit_copies();
bool next_copy(std::size_t batches_left, Copy& copy, Where where);  ///< the caller's oldest, until only so many committed batches are left

unsigned lane();
unsigned linear_thread();  ///< index within the block
unsigned exited_lanes();   ///< of the caller's warp, absent lanes of a partial warp included
void* dynamic_shared();
std::size_t dynamic_shared_bytes();
bool inside_kernel();  ///< in code of the kernel, not of the emulation
bool in_parameter_space(const void* address);
bool on_own_stack(const void* address);
bool on_any_stack(const void* address);

/// Device memory as far as it is known. Once a buffer is added, the checker faults on accesses outside of all.
void add_buffer(const void* address, std::size_t bytes);
void remove_buffer(const void* address);
bool outside_buffers(const void* address, std::size_t bytes);

/// Bytes of global memory that the last launch read or wrote.
struct Touched {
    const char *begin, *end;
    bool writes;
};

/// Told of everything a checker of memory accesses needs. Null unless one is linked.
struct Observer {
    virtual void launch_begins() = 0;
    virtual void block_begins() = 0;
    virtual void block_barrier() = 0;
    virtual void warp_barrier(unsigned first_thread, unsigned present) = 0;
    virtual void atomic_access(const void* address, std::size_t bytes, const void* code) = 0;
    virtual std::vector<Touched> touched() const = 0;

  protected:
    ~Observer() = default;
};
extern Observer* observer;

}  // namespace emu
