#pragma once
/// Stand-in for libcudart, linked in its place: fake_cudart.cpp defines the runtime's own functions.
///
/// Work put on a stream runs only when the host waits for it, in an order that respects streams and events but is otherwise
/// hostile. Independent of that order, every access to device memory is checked when it is put on its stream: two
/// accesses of which one writes must be ordered by stream, event or host wait, else emu::Fault names both.
#include <cuda_runtime.h>
#include <functional>
#include <string>
#include <vector>

namespace emu {

enum class Order { as_submitted, last_stream_first, random };

struct DeviceOptions {
    Order order = Order::last_stream_first;
    unsigned seed = 1;
    std::size_t memory_bytes = std::size_t{1} << 32;  ///< cudaMalloc fails beyond
    double hang_seconds = 10.0;                       ///< a wait without progress is a Fault that lists what each stream waits for
    int devices = 8;
    bool guard_memory = true;  ///< the host cannot touch device memory; costs time in proportion to the memory in use
    bool check_order = true;   ///< off only to show what the order of execution alone finds
};
extern DeviceOptions device_options;

struct Range {
    const void* address;
    std::size_t bytes;  ///< 0: to the end of the allocation or of the sub-buffer that holds the address
    bool writes;
};

/// An operation in stream order. step() returns false as long as it cannot finish yet (a collective whose peers are late).
void enqueue(cudaStream_t stream, std::string name, const std::vector<Range>& ranges, std::function<bool()> step);

/// Splits an arena for the checks above: accesses through pointers into [address, address + bytes) stay inside it.
void name_sub_buffer(const void* address, std::size_t bytes, std::string name);

/// Forgets all streams, events and memory of all devices; for use between tests.
void reset_devices();

}  // namespace emu
