/// Memory of the stand-in devices: mappings that end at a page without access, filled with NaN, out of the host's reach.
#include "cuda_emulation.hpp"
#include "fake_state.hpp"

#include <algorithm>
#include <cstring>
#include <sys/mman.h>

namespace emu {
namespace {

void protect(int protection) {
    if (!device_options.guard_memory) return;
    for (const auto& [p, a] : devices().memory)
        if (a.on_device) mprotect(a.map, a.mapped, protection);
}

}  // namespace

void open_memory() {
    if (devices().open++ == 0) protect(PROT_READ | PROT_WRITE);
}
void close_memory() {
    if (--devices().open == 0) protect(PROT_NONE);
}

std::pair<const char* const, Allocation>* find_memory(const void* p) {
    auto& memory = devices().memory;
    auto at = memory.upper_bound(static_cast<const char*>(p));
    if (at == memory.begin()) return nullptr;
    --at;
    return static_cast<const char*>(p) < at->first + std::max<std::size_t>(at->second.bytes, 1) ? &*at : nullptr;
}

cudaError_t allocate(void** p, std::size_t bytes, bool on_device) {
    Devices& d = devices();
    const std::lock_guard lock(d.mutex);
    const unsigned device = current_device();
    if (on_device && d.used[device] + bytes > device_options.memory_bytes) return result(cudaErrorMemoryAllocation);
    // A page without access follows, and the buffer ends as close to it as cudaMalloc's alignment lets it.
    const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + 255) / 256 * 256, mapped = (rounded + 4095) / 4096 * 4096;
    char* map = static_cast<char*>(mmap(nullptr, mapped + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (map == MAP_FAILED) return result(cudaErrorMemoryAllocation);
    std::memset(map, 0xff, mapped);
    mprotect(map + mapped, 4096, PROT_NONE);
    if (on_device && device_options.guard_memory && d.open == 0) mprotect(map, mapped, PROT_NONE);
    char* base = map + mapped - rounded;
    add_buffer(base, bytes);
    d.memory[base] = {map, bytes, mapped, false, on_device, device, {}, {}};
    if (on_device) {
        d.used[device] += bytes;
        ++d.allocations;
    }
    *p = base;
    return cudaSuccess;
}

void release(const char* base) {  // the address range stays mapped without access: a late use is a segmentation fault
    remove_buffer(base);
    Allocation& a = devices().memory.at(base);
    a.on_device = false;
    mprotect(a.map, a.mapped, PROT_NONE);
    madvise(a.map, a.mapped, MADV_DONTNEED);
}

void free_in_order(void* p, unsigned stream, const Clock& clock, const char* name) {
    auto* found = find_memory(p);
    if (found == nullptr || found->first != p) throw Fault(std::string(name) + " of what was not allocated");
    check_access(stream, std::make_shared<const Clock>(clock), name, {p, found->second.bytes, true});
    found->second.freed = true;
    if (found->second.on_device) devices().used[found->second.owner] -= found->second.bytes;
}

void forget_memory() {
    for (const auto& [p, a] : devices().memory) {
        remove_buffer(p);
        munmap(a.map, a.mapped + 4096);
    }
    devices().memory.clear();
}

void name_sub_buffer(const void* address, std::size_t bytes, std::string name) {
    const std::lock_guard lock(devices().mutex);
    if (auto* found = find_memory(address)) found->second.parts[static_cast<const char*>(address)] = {bytes, std::move(name)};
}

std::size_t device_bytes_in_use() {
    const std::lock_guard lock(devices().mutex);
    return devices().used[current_device()];
}

long device_allocations() {
    const std::lock_guard lock(devices().mutex);
    return devices().allocations;
}

}  // namespace emu

using namespace emu;

extern "C" {

cudaError_t cudaMalloc(void** p, size_t bytes) {
    EMU_CUDA_CALL(cudaErrorMemoryAllocation);
    return allocate(p, bytes, true);
}
cudaError_t cudaMallocAsync(void** p, size_t bytes, cudaStream_t s) {
    EMU_CUDA_CALL(cudaErrorMemoryAllocation);
    const cudaError_t e = allocate(p, bytes, true);
    if (e == cudaSuccess) enqueue(s, "cudaMallocAsync", {{*p, bytes, true}}, [] { return true; });
    return e;
}
cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned) {
    EMU_CUDA_CALL(cudaErrorMemoryAllocation);
    return allocate(p, bytes, false);
}
cudaError_t cudaMallocHost(void** p, size_t bytes) {
    EMU_CUDA_CALL(cudaErrorMemoryAllocation);
    return allocate(p, bytes, false);
}
cudaError_t cudaFreeAsync(void* p, cudaStream_t s) {
    EMU_CUDA_CALL(cudaErrorUnknown);
    const std::lock_guard lock(devices().mutex);
    enqueue(s, "cudaFreeAsync", {}, [p] { return release(static_cast<char*>(p)), true; });
    free_in_order(p, s->id, s->clock, "cudaFreeAsync");
    return cudaSuccess;
}

static cudaError_t free_now(void* p, const char* name) {
    if (p == nullptr) return cudaSuccess;
    const std::lock_guard lock(devices().mutex);
    free_in_order(p, 0, devices().host, name);
    release(static_cast<char*>(p));
    return cudaSuccess;
}
cudaError_t cudaFree(void* p) {
    EMU_CUDA_CALL(cudaErrorUnknown);
    for (auto& s : devices().streams)  // it waits for the device
        if (s->device == current_device()) wait_until(s->device, [&s] { return s->idle(); });
    {
        const std::lock_guard lock(devices().mutex);
        for (auto& s : devices().streams)
            if (s->device == current_device()) join(devices().host, s->clock);
    }
    return free_now(p, "cudaFree");
}
/// Nobody promises that it waits.
cudaError_t cudaFreeHost(void* p) {
    EMU_CUDA_CALL(cudaErrorUnknown);
    return free_now(p, "cudaFreeHost");
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    EMU_CUDA_CALL(cudaErrorUnknown);
    const std::lock_guard lock(devices().mutex);
    *total = device_options.memory_bytes;
    *free = *total - devices().used[current_device()];
    return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) {
    EMU_CUDA_CALL(cudaErrorUnknown);
    const std::lock_guard lock(devices().mutex);
    const auto* found = find_memory(p);
    *a = {};
    a->type = found == nullptr ? cudaMemoryTypeUnregistered : found->second.on_device ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
    a->device = static_cast<int>(current_device());
    if (a->type == cudaMemoryTypeDevice) a->devicePointer = const_cast<void*>(p);
    if (a->type != cudaMemoryTypeDevice) a->hostPointer = const_cast<void*>(p);
    return cudaSuccess;
}

/// Counted apart: a step's host reads of device values are few, and known.
static bool reaches_host(const void* to, const void* from) {
    const std::lock_guard lock(devices().mutex);
    const auto on_device = [](const void* p) { return find_memory(p) != nullptr && find_memory(p)->second.on_device; };
    return on_device(from) && !on_device(to);
}

static cudaError_t copy_memory(const char* name, void* to, const void* from, size_t bytes, cudaStream_t s) {
    if (bytes == 0) return cudaSuccess;
    if (reaches_host(to, from) && call_fails("copy to host")) return result(cudaErrorUnknown);
    enqueue(s, name, {{to, bytes, true}, {from, bytes, false}}, [=] { return std::memmove(to, from, bytes), true; });
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t s) {
    EMU_CUDA_CALL(cudaErrorUnknown);
    return copy_memory("cudaMemcpyAsync", to, from, bytes, s);
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t rows, cudaMemcpyKind,
                              cudaStream_t s) {
    EMU_CUDA_CALL(cudaErrorUnknown);
    if (reaches_host(to, from) && call_fails("copy to host")) return result(cudaErrorUnknown);
    const std::lock_guard lock(devices().mutex);
    std::vector<Range> ranges;
    for (size_t r = 0; r < rows && width > 0; ++r) {
        ranges.push_back({static_cast<char*>(to) + r * to_pitch, width, true});
        ranges.push_back({static_cast<const char*>(from) + r * from_pitch, width, false});
    }
    enqueue(s, "cudaMemcpy2DAsync", ranges, [=] {
        for (size_t r = 0; r < rows; ++r)
            std::memcpy(static_cast<char*>(to) + r * to_pitch, static_cast<const char*>(from) + r * from_pitch, width);
        return true;
    });
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t s) {
    EMU_CUDA_CALL(cudaErrorUnknown);
    if (bytes == 0) return cudaSuccess;
    enqueue(s, "cudaMemsetAsync", {{p, bytes, true}}, [=] { return std::memset(p, value, bytes), true; });
    return cudaSuccess;
}
}
