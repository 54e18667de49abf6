#pragma once
/// What the stand-ins of libcudart, cuBLASLt and NCCL share: streams, events and memory of all devices, behind one lock.
#include "fake_device.hpp"
#include "injection.hpp"

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

namespace emu {

/// clock[i]: how far the work of participant i is known to be done. Participant 0 is the host, the others are streams.
using Clock = std::vector<unsigned long>;
inline unsigned long at(const Clock& clock, unsigned i) {
    return i < clock.size() ? clock[i] : 0;
}
/// Whether it told `into` anything new.
bool join(Clock& into, const Clock& from);

struct Operation {
    std::string name;
    std::function<bool()> step;
    unsigned long submitted;
    bool on_host;
    std::shared_ptr<const Clock> clock;  ///< of its stream when it was submitted, itself included
};

}  // namespace emu

struct CUevent_st {
    bool recorded = false, timed = true;
    unsigned long wanted = 0, reached = 0;  // generation of the last record submitted, executed
    std::chrono::steady_clock::time_point when;
    emu::Clock clock;
};

struct CUstream_st {
    unsigned id, device;
    bool running = false;  // a host function of it is under way, without the lock
    std::deque<emu::Operation> queue;
    emu::Clock clock;
    bool idle() const { return queue.empty() && !running; }
};

namespace emu {

struct Past {  // an access to memory
    unsigned stream;
    std::shared_ptr<const Clock> clock;
    const char *begin, *end;
    bool writes;
    std::string name;
    unsigned long when() const { return at(*clock, stream); }
};

struct Allocation {
    char* map = nullptr;
    std::size_t bytes = 0, mapped = 0;
    bool freed = false, on_device = true;
    unsigned owner = 0;
    std::vector<Past> past;
    std::map<const char*, std::pair<std::size_t, std::string>> parts;
};

struct Devices {
    std::recursive_mutex mutex;
    std::vector<std::unique_ptr<CUstream_st>> streams;
    std::vector<std::unique_ptr<CUevent_st>> events;  // kept until reset: queued work refers to them
    std::map<const char*, Allocation> memory;
    Clock host;
    unsigned next_id = 1;
    unsigned long submitted = 0;
    long allocations = 0;
    int open = 0;  // how many hold device memory accessible
    std::map<unsigned, std::size_t> used;
    std::map<unsigned, std::chrono::steady_clock::time_point> moved;  // by device: when something last did, of those who ask
    std::mt19937 random;
    std::chrono::steady_clock::time_point asked;  // when the host last did
    std::jthread alone;                           // last: it is joined before the rest goes
};
Devices& devices();

/// Device memory is inaccessible while no operation runs: a host dereference is a segmentation fault, as on a real machine.
/// Both are called under the lock, and count.
void open_memory();
void close_memory();
struct OpenMemory {
    OpenMemory() { open_memory(); }
    ~OpenMemory() { close_memory(); }
    OpenMemory(const OpenMemory&) = delete;
};
void forget_memory();

/// The access of an operation submitted with that clock on that stream against all known ones; then it is one of them. found_late: what it
/// touches is known only now that it runs, and later ones may have been submitted meanwhile.
void check_access(unsigned stream, const std::shared_ptr<const Clock>& clock, const std::string& name, Range range,
                  bool found_late = false);
/// For the operation that is running: an access of it that its submission could not name.
void check_found(const std::string& name, Range range);

/// does_work: false for what only orders other operations, which need not be waited for.
void enqueue(cudaStream_t stream, std::string name, const std::vector<Range>& ranges, std::function<bool()> step, bool on_host,
             bool does_work);

/// Runs work of a device until done() or a hang; then Fault.
void wait_until(unsigned device, const std::function<bool()>& done);
/// Lets the device run one operation, as time would.
void pass_time(unsigned device);

/// Physical index of the calling thread's device.
unsigned current_device();
cudaError_t result(cudaError_t error);  ///< keeps it for cudaGetLastError
cudaError_t last_error(bool forget);

std::pair<const char* const, Allocation>* find_memory(const void* address);
cudaError_t allocate(void** address, std::size_t bytes, bool on_device);
/// For cudaFree: the access is checked, then the memory counts as free; release() takes it away.
void free_in_order(void* address, unsigned stream, const Clock& clock, const char* name);
void release(const char* base);

/// First line of every runtime function.
#define EMU_CUDA_CALL(error) \
    if (emu::call_fails(__func__)) return emu::result(error)

}  // namespace emu
