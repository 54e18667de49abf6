#pragma once
/// Stand-in for libcudart, linked in its place: what tests may set and ask. fake_cudart.cpp and its neighbours define the functions.
///
/// Work put on a stream runs only when the host waits for it or asks for it (in whole programs also when it has asked nothing for
/// a second), in an order that respects streams and events but is otherwise hostile. Independent of that order, every access to device
/// memory is checked: two accesses of which one writes must be ordered by stream, event or host wait, else emu::Fault names both.
#include <cstddef>
#include <cstdint>
#include <cuda_runtime.h>
#include <functional>
#include <string>
#include <vector>

namespace emu {

/// first_stream_first is a slow network: communication moves only where compute, whose stream is the first, has to wait for it.
enum class Order { as_submitted, last_stream_first, random, first_stream_first };

/// Each can be given from outside, for whole programs: EMU_ORDER, EMU_SEED, EMU_MEMORY_BYTES, EMU_HANG_SECONDS, EMU_DEVICES, EMU_CAPABILITY
/// (90), EMU_MIG, EMU_DRIVER, EMU_CUDNN, EMU_GUARD, EMU_CHECK_ORDER, EMU_ALONE_SECONDS; enumerators by name, booleans as 0 or 1; numbers
/// also by rank (of_own_rank).
struct DeviceOptions {
    Order order = Order::last_stream_first;
    unsigned seed = 1;
    std::size_t memory_bytes = std::size_t{1} << 32;  ///< of each device; cudaMalloc fails beyond
    double hang_seconds = 10.0;                       ///< a wait without progress is a Fault that lists what each stream waits for
    /// Where the host has asked nothing for so long, because it waits for other ranks elsewhere, work goes on by itself: those ranks may
    /// wait for that work. 0: never. 1 where the environment does not say.
    double alone_seconds = 0;
    int devices = 8;              ///< of the machine; CUDA_VISIBLE_DEVICES chooses among them. 0: cudaErrorNoDevice
    int capability = 90;          ///< 10 * major + minor
    bool mig = false;             ///< devices are parts of one card: they share its bus id, and have a uuid each
    int driver = 13000;           ///< 0: a machine without one
    int cudnn = 91900;            ///< version of cuDNN that is loaded
    bool guard_memory = true;     ///< the host cannot touch device memory; costs time in proportion to the memory in use
    bool check_order = true;      ///< off only to show what the order of execution alone finds
    bool default_stream = false;  ///< work on stream nullptr runs at once, unchecked; else it is a Fault
};
extern DeviceOptions device_options;

struct Range {
    const void* address;
    std::size_t bytes;  ///< 0: to the end of the part of an arena (name_sub_buffer) that holds the address, else the first byte alone
    bool writes;
};

/// An operation in stream order. step() returns false as long as it cannot finish yet (a collective whose peers are late).
/// on_host: it is a function of the program, which runs without any lock, without access to device memory, and may block.
void enqueue(cudaStream_t stream, std::string name, const std::vector<Range>& ranges, std::function<bool()> step, bool on_host = false);

/// Splits an arena for the checks above: accesses through pointers into [address, address + bytes) stay inside it.
void name_sub_buffer(const void* address, std::size_t bytes, std::string name);

/// Bytes of device memory that the current device has given out, and how many allocations there were since reset_devices().
std::size_t device_bytes_in_use();
long device_allocations();

/// Forgets all streams, events and memory of all devices; for use between tests.
void reset_devices();

}  // namespace emu
