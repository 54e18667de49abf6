#include "cuda_emulation.hpp"
#include "fake_device.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <sys/mman.h>
#include <thread>

namespace emu {

DeviceOptions device_options;

/// clock[i]: how far the work of participant i is known to be done. Participant 0 is the host, the others are streams.
using Clock = std::map<unsigned, unsigned long>;

static void join(Clock& into, const Clock& from) {
    for (const auto& [who, when] : from) into[who] = std::max(into[who], when);
}

struct Operation {
    std::string name;
    std::function<bool()> step;
    unsigned long submitted;
};

}  // namespace emu

struct CUevent_st {
    bool recorded = false;
    unsigned long wanted = 0, reached = 0;  // generation of the last record submitted, executed
    emu::Clock clock;
};

struct CUstream_st {
    unsigned id, device;
    std::deque<emu::Operation> queue;
    emu::Clock clock;
};

namespace emu {
namespace {

struct Past {  // an access to a buffer
    unsigned stream;
    unsigned long when;
    const char *begin, *end;
    bool writes;
    std::string name;
};

struct Allocation {
    char* map = nullptr;
    std::size_t bytes = 0, mapped = 0;
    bool freed = false, device = true;
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
    std::map<unsigned, std::size_t> used;
    std::mt19937 random;
};

Devices& devices() {
    static Devices d;
    return d;
}

thread_local unsigned current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t result(cudaError_t e) {
    if (e != cudaSuccess) last_error = e;
    return e;
}

std::pair<const char* const, Allocation>* find(const void* p) {
    auto at = devices().memory.upper_bound(static_cast<const char*>(p));
    if (at == devices().memory.begin()) return nullptr;
    --at;
    return static_cast<const char*>(p) < at->first + std::max<std::size_t>(at->second.bytes, 1) ? &*at : nullptr;
}

/// Device memory is inaccessible while no operation runs: a host dereference is a segmentation fault, as on a real machine.
class OpenMemory {
  public:
    OpenMemory() { set(PROT_READ | PROT_WRITE); }
    ~OpenMemory() { set(PROT_NONE); }
    OpenMemory(const OpenMemory&) = delete;

  private:
    static void set(int protection) {
        if (!device_options.guard_memory) return;
        for (const auto& [p, a] : devices().memory)
            if (a.device) mprotect(a.map, a.mapped, protection);
    }
};

void check_access(CUstream_st& s, const std::string& name, Range r) {
    auto* found = find(r.address);
    if (found == nullptr) return;  // pageable host memory
    auto& [base, a] = *found;
    const char *begin = static_cast<const char*>(r.address), *end = begin + r.bytes;
    std::string what = "buffer of " + std::to_string(a.bytes) + " B";
    if (r.bytes == 0) end = base + a.bytes;
    auto part = a.parts.upper_bound(begin);
    if (part != a.parts.begin() && begin < std::prev(part)->first + std::prev(part)->second.first) {
        --part;
        what = part->second.second;
        if (r.bytes == 0) end = part->first + part->second.first;
    }
    if (a.freed) throw Fault(name + " uses a " + what + " after it was freed");
    if (end > base + a.bytes) throw Fault(name + " reaches beyond the " + what);
    std::erase_if(a.past, [&](const Past& p) {
        if (p.end <= begin || end <= p.begin) return false;
        const bool ordered = s.clock[p.stream] >= p.when;
        if (!ordered && (p.writes || r.writes) && device_options.check_order) {
            throw Fault((r.writes ? "write by " : "read by ") + name + " on stream " + std::to_string(s.id) + " is not ordered after the " +
                        (p.writes ? "write by " : "read by ") + p.name + " on stream " + std::to_string(p.stream) + ": " + what);
        }
        return ordered && r.writes && begin <= p.begin && p.end <= end;
    });
    a.past.push_back({s.id, s.clock[s.id], begin, end, r.writes, name});
}

/// Runs one step of one stream's first operation, streams tried in the chosen order. False: nothing could move.
bool advance(unsigned device) {
    Devices& d = devices();
    std::vector<CUstream_st*> ready;
    for (auto& s : d.streams)
        if (s->device == device && !s->queue.empty()) ready.push_back(s.get());
    if (device_options.order == Order::as_submitted) std::ranges::sort(ready, {}, [](auto* s) { return s->queue.front().submitted; });
    if (device_options.order == Order::last_stream_first) std::ranges::reverse(ready);
    if (device_options.order == Order::random) std::ranges::shuffle(ready, d.random);
    for (CUstream_st* s : ready) {
        const Operation operation = s->queue.front();  // step() may throw: the operation is gone then
        s->queue.pop_front();
        if (operation.step()) return true;
        s->queue.push_front(operation);
    }
    return false;
}

template <class Done>
void wait_until(unsigned device, Done done) {
    Devices& d = devices();
    auto last = std::chrono::steady_clock::now();
    for (;;) {
        {
            const std::lock_guard lock(d.mutex);
            if (done()) return;
            const OpenMemory open;
            bool moved = false;
            while (!done() && advance(device)) moved = true;
            if (moved) last = std::chrono::steady_clock::now();
        }
        if (std::chrono::steady_clock::now() - last > std::chrono::duration<double>(device_options.hang_seconds)) {
            std::string all;
            for (auto& s : d.streams)
                if (s->device == device && !s->queue.empty())
                    all += " stream " + std::to_string(s->id) + " at " + s->queue.front().name + ";";
            throw Fault("the host waits for device " + std::to_string(device) + ", which hangs:" + all);
        }
        std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
}

void submit_kernel(cudaStream_t stream, std::string name, const Access* accesses, std::size_t count, std::function<void()> run) {
    std::vector<Range> ranges;
    for (std::size_t i = 0; i < count; ++i)
        if (accesses[i].address != nullptr) ranges.push_back({accesses[i].address, 0, accesses[i].writes});
    enqueue(stream, std::move(name), ranges, [run] { return run(), true; });
}
[[maybe_unused]] const bool installed = (submit = submit_kernel, true);

cudaError_t allocate(void** p, std::size_t bytes, bool device) {
    Devices& d = devices();
    const std::lock_guard lock(d.mutex);
    if (device && d.used[current_device] + bytes > device_options.memory_bytes) return result(cudaErrorMemoryAllocation);
    // A page without access follows, and the buffer ends as close to it as cudaMalloc's alignment lets it.
    const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + 255) / 256 * 256, mapped = (rounded + 4095) / 4096 * 4096;
    char* map = static_cast<char*>(mmap(nullptr, mapped + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (map == MAP_FAILED) return result(cudaErrorMemoryAllocation);
    std::memset(map, 0xff, mapped);
    mprotect(map + mapped, 4096, PROT_NONE);
    if (device && device_options.guard_memory) mprotect(map, mapped, PROT_NONE);
    char* base = map + mapped - rounded;
    add_buffer(base, bytes);
    d.memory[base] = {map, bytes, mapped, false, device, current_device, {}, {}};
    if (device) d.used[current_device] += bytes;
    *p = base;
    return cudaSuccess;
}

void release(const char* base) {  // the address range stays mapped without access: a late use is a segmentation fault
    remove_buffer(base);
    Allocation& a = devices().memory.at(base);
    a.device = false;
    mprotect(a.map, a.mapped, PROT_NONE);
    madvise(a.map, a.mapped, MADV_DONTNEED);
}

void free_in_order(void* p, CUstream_st& s, const char* name) {
    auto* found = find(p);
    if (found == nullptr || found->first != p) throw Fault(std::string(name) + " of what was not allocated");
    check_access(s, name, {p, found->second.bytes, true});
    found->second.freed = true;
    if (found->second.device) devices().used[found->second.owner] -= found->second.bytes;
}

}  // namespace

void enqueue(cudaStream_t stream, std::string name, const std::vector<Range>& ranges, std::function<bool()> step) {
    Devices& d = devices();
    const std::lock_guard lock(d.mutex);
    if (stream == nullptr) throw Fault(name + " on the default stream, which would serialize everything");
    join(stream->clock, d.host);
    ++stream->clock[stream->id];
    for (const Range& r : ranges) check_access(*stream, name, r);
    stream->queue.push_back({std::move(name), std::move(step), ++d.submitted});
}

void name_sub_buffer(const void* address, std::size_t bytes, std::string name) {
    const std::lock_guard lock(devices().mutex);
    if (auto* found = find(address)) found->second.parts[static_cast<const char*>(address)] = {bytes, std::move(name)};
}

void reset_devices() {
    Devices& d = devices();
    const std::lock_guard lock(d.mutex);
    for (auto& [p, a] : d.memory) {
        remove_buffer(p);
        munmap(a.map, a.mapped + 4096);
    }
    d.memory.clear();
    d.streams.clear();
    d.events.clear();
    d.host.clear();
    d.used.clear();
    d.random.seed(device_options.seed);
}

}  // namespace emu

using namespace emu;

extern "C" {

cudaError_t cudaGetDeviceCount(int* n) {
    return *n = device_options.devices, cudaSuccess;
}
cudaError_t cudaSetDevice(int n) {
    if (n < 0 || n >= device_options.devices) return result(cudaErrorInvalidDevice);
    current_device = static_cast<unsigned>(n);
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int* n) {
    return *n = static_cast<int>(current_device), cudaSuccess;
}
cudaError_t cudaGetLastError() {
    return std::exchange(last_error, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
    return last_error;
}
const char* cudaGetErrorName(cudaError_t e) {
    return e == cudaSuccess ? "cudaSuccess" : e == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaError";
}
const char* cudaGetErrorString(cudaError_t e) {
    return e == cudaErrorMemoryAllocation ? "out of memory" : cudaGetErrorName(e);
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    const std::lock_guard lock(devices().mutex);
    *total = device_options.memory_bytes;
    *free = *total - devices().used[current_device];
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) {
    Devices& d = devices();
    const std::lock_guard lock(d.mutex);
    d.streams.push_back(std::make_unique<CUstream_st>(CUstream_st{d.next_id++, current_device, {}, {}}));
    *s = d.streams.back().get();
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    wait_until(s->device, [s] { return s->queue.empty(); });
    const std::lock_guard lock(devices().mutex);
    join(devices().host, s->clock);
    return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t s) {
    return s->queue.empty() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {  // a real one lets the work finish; here it must be over
    if (!s->queue.empty()) throw Fault("cudaStreamDestroy of stream " + std::to_string(s->id) + " with work left");
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
    for (auto& s : devices().streams)
        if (s->device == current_device) cudaStreamSynchronize(s.get());
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
    const std::lock_guard lock(devices().mutex);
    devices().events.push_back(std::make_unique<CUevent_st>());
    *e = devices().events.back().get();
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) {
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    const std::lock_guard lock(devices().mutex);
    const unsigned long generation = ++e->wanted;
    enqueue(s, "cudaEventRecord", {}, [e, generation] { return e->reached = generation, true; });
    e->recorded = true;
    e->clock = s->clock;
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
    const std::lock_guard lock(devices().mutex);
    if (!e->recorded) return cudaSuccess;  // as documented: no wait at all
    const unsigned long generation = e->wanted;
    enqueue(s, "cudaStreamWaitEvent", {}, [e, generation] { return e->reached >= generation; });
    join(s->clock, e->clock);
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
    return e->reached == e->wanted ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    const unsigned long generation = e->wanted;
    wait_until(current_device, [=] { return e->reached >= generation; });
    const std::lock_guard lock(devices().mutex);
    join(devices().host, e->clock);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void** p, size_t bytes) {
    return allocate(p, bytes, true);
}
cudaError_t cudaMallocAsync(void** p, size_t bytes, cudaStream_t s) {
    const cudaError_t e = allocate(p, bytes, true);
    if (e == cudaSuccess) enqueue(s, "cudaMallocAsync", {{*p, bytes, true}}, [] { return true; });
    return e;
}
cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned) {
    return allocate(p, bytes, false);
}
cudaError_t cudaMallocHost(void** p, size_t bytes) {
    return allocate(p, bytes, false);
}
cudaError_t cudaFreeAsync(void* p, cudaStream_t s) {
    const std::lock_guard lock(devices().mutex);
    enqueue(s, "cudaFreeAsync", {}, [p] { return release(static_cast<char*>(p)), true; });
    free_in_order(p, *s, "cudaFreeAsync");
    return cudaSuccess;
}
cudaError_t cudaFree(void* p) {
    if (p == nullptr) return cudaSuccess;
    cudaDeviceSynchronize();
    const std::lock_guard lock(devices().mutex);
    CUstream_st host{0, current_device, {}, devices().host};
    free_in_order(p, host, "cudaFree");
    release(static_cast<char*>(p));
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) {
    return cudaFree(p);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t s) {
    if (bytes == 0) return cudaSuccess;
    enqueue(s, "cudaMemcpyAsync", {{to, bytes, true}, {from, bytes, false}}, [=] { return std::memmove(to, from, bytes), true; });
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t s) {
    if (bytes == 0) return cudaSuccess;
    enqueue(s, "cudaMemsetAsync", {{p, bytes, true}}, [=] { return std::memset(p, value, bytes), true; });
    return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void* data) {
    enqueue(s, "cudaLaunchHostFunc", {}, [=] { return f(data), true; });
    return cudaSuccess;
}
}
