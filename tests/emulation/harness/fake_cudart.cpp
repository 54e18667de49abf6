/// Stand-in for libcudart: devices, streams, events, errors. Memory is in fake_memory.cpp.
#include "cuda_emulation.hpp"
#include "fake_state.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace emu {
namespace {

thread_local unsigned device_index = 0;  // as the program counts
thread_local cudaError_t kept_error = cudaSuccess;

/// Physical indices of the devices this process sees.
std::vector<unsigned> visible() {
    std::vector<unsigned> all;
    const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
    if (list == nullptr) {
        for (int i = 0; i < device_options.devices; ++i) all.push_back(static_cast<unsigned>(i));
        return all;
    }
    while (*list != '\0') {
        char* end = nullptr;
        const long index = std::strtol(list, &end, 10);
        if (end == list || index < 0 || index >= device_options.devices) break;  // as CUDA: what follows a bad one is not seen
        all.push_back(static_cast<unsigned>(index));
        list = *end == ',' ? end + 1 : end;
    }
    return all;
}

/// Dynamic shared memory that a kernel may be allowed, in bytes.
int shared_with_opt_in() {
    return (device_options.capability >= 90 ? 227 : device_options.capability >= 80 ? 163 : 64) << 10;
}

cudaError_t no_device() {
    return device_options.driver == 0 ? cudaErrorInsufficientDriver : visible().empty() ? cudaErrorNoDevice : cudaSuccess;
}

struct ErrorText {
    cudaError_t error;
    const char *name, *text;
};
constexpr ErrorText kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};
const ErrorText& text_of(cudaError_t e) {
    for (const ErrorText& t : kErrors)
        if (t.error == e) return t;
    return kErrors[std::size(kErrors) - 1];
}

}  // namespace

unsigned current_device() {
    const auto all = visible();
    return device_index < all.size() ? all[device_index] : device_index;
}

cudaError_t result(cudaError_t e) {
    if (e != cudaSuccess) kept_error = e;
    return e;
}

cudaError_t last_error(bool forget) {
    return forget ? std::exchange(kept_error, cudaSuccess) : kept_error;
}

}  // namespace emu

using namespace emu;

extern "C" {

cudaError_t cudaGetDeviceCount(int* n) {
    EMU_CUDA_CALL(cudaErrorUnknown);
    *n = 0;
    if (no_device() != cudaSuccess) return result(no_device());
    *n = static_cast<int>(visible().size());
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int n) {
    EMU_CUDA_CALL(cudaErrorUnknown);
    if (no_device() != cudaSuccess) return result(no_device());
    if (n < 0 || n >= static_cast<int>(visible().size())) return result(cudaErrorInvalidDevice);
    device_index = static_cast<unsigned>(n);
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int* n) {
    EMU_CUDA_CALL(cudaErrorUnknown);
    *n = static_cast<int>(device_index);
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
    EMU_CUDA_CALL(cudaErrorUnknown);
    *version = device_options.driver;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
    EMU_CUDA_CALL(cudaErrorUnknown);
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int n) {
    EMU_CUDA_CALL(cudaErrorUnknown);
    const auto all = visible();
    if (n < 0 || n >= static_cast<int>(all.size())) return result(cudaErrorInvalidDevice);
    std::snprintf(id, static_cast<std::size_t>(length), "0000:%02X:00.0",
                  16 * ((device_options.mig ? 0 : all[static_cast<std::size_t>(n)]) + 1));
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int n) {
    EMU_CUDA_CALL(cudaErrorUnknown);
    const auto all = visible();
    if (n < 0 || n >= static_cast<int>(all.size())) return result(cudaErrorInvalidDevice);
    std::memset(static_cast<void*>(p), 0, sizeof *p);
    std::snprintf(p->name, sizeof p->name, "Emulated GPU");
    p->uuid.bytes[0] = static_cast<char>(all[static_cast<std::size_t>(n)] + 1);
    p->totalGlobalMem = device_options.memory_bytes;
    p->major = device_options.capability / 10;
    p->minor = device_options.capability % 10;
    p->multiProcessorCount = 4;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = 2048;
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerBlockOptin = static_cast<std::size_t>(shared_with_opt_in());
    p->memoryBusWidth = 5120;
    p->l2CacheSize = 50 << 20;
    p->ECCEnabled = 1;
    p->asyncEngineCount = 3;
    p->concurrentKernels = 1;
    p->unifiedAddressing = 1;
    p->pciBusID = static_cast<int>(16 * (all[static_cast<std::size_t>(n)] + 1));
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int n) {
    EMU_CUDA_CALL(cudaErrorUnknown);
    const auto all = visible();
    if (n < 0 || n >= static_cast<int>(all.size())) return result(cudaErrorInvalidDevice);
    switch (attribute) {
        case cudaDevAttrComputeCapabilityMajor:
            return *value = device_options.capability / 10, cudaSuccess;
        case cudaDevAttrComputeCapabilityMinor:
            return *value = device_options.capability % 10, cudaSuccess;
        case cudaDevAttrMultiProcessorCount:
            return *value = 4, cudaSuccess;
        case cudaDevAttrMaxSharedMemoryPerBlock:
            return *value = 48 << 10, cudaSuccess;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin:
            return *value = shared_with_opt_in(), cudaSuccess;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
            return *value = shared_with_opt_in() + (device_options.capability >= 80 ? 1 << 10 : 0), cudaSuccess;
        case cudaDevAttrMaxThreadsPerMultiProcessor:
            return *value = 2048, cudaSuccess;
        case cudaDevAttrWarpSize:
            return *value = 32, cudaSuccess;
        case cudaDevAttrClockRate:  // kHz
            return *value = 1980000, cudaSuccess;
        case cudaDevAttrMemoryClockRate:
            return *value = 3201000, cudaSuccess;
        case cudaDevAttrGlobalMemoryBusWidth:
            return *value = 6144, cudaSuccess;
        case cudaDevAttrL2CacheSize:
            return *value = 50 << 20, cudaSuccess;
        case cudaDevAttrEccEnabled:
            return *value = 1, cudaSuccess;
        case cudaDevAttrPciBusId:
            return *value = static_cast<int>(16 * (all[static_cast<std::size_t>(n)] + 1)), cudaSuccess;
        case cudaDevAttrPciDeviceId:
        case cudaDevAttrPciDomainId:
        case cudaDevAttrComputeMode:
            return *value = 0, cudaSuccess;
        default:
            throw Fault("the stand-in of cudaDeviceGetAttribute knows no attribute " + std::to_string(attribute));
    }
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
    EMU_CUDA_CALL(cudaErrorUnknown);
    *can = 0;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    EMU_CUDA_CALL(cudaErrorUnknown);
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
    EMU_CUDA_CALL(cudaErrorUnknown);
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize)
        throw Fault("the stand-in of cudaFuncSetAttribute knows no such attribute");
    if (value < 0 || value > shared_with_opt_in()) return result(cudaErrorInvalidValue);
    allow_shared(kernel, static_cast<std::size_t>(value));
    return cudaSuccess;
}

cudaError_t cudaGetLastError() {
    return last_error(true);
}
cudaError_t cudaPeekAtLastError() {
    return last_error(false);
}
const char* cudaGetErrorName(cudaError_t e) {
    return text_of(e).name;
}
const char* cudaGetErrorString(cudaError_t e) {
    return text_of(e).text;
}

static cudaError_t make_stream(cudaStream_t* s) {
    Devices& d = devices();
    const std::lock_guard lock(d.mutex);
    d.streams.push_back(std::make_unique<CUstream_st>());
    *s = d.streams.back().get();
    (*s)->id = d.next_id++;
    (*s)->device = current_device();
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) {
    EMU_CUDA_CALL(cudaErrorUnknown);
    return make_stream(s);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned, int) {
    EMU_CUDA_CALL(cudaErrorUnknown);
    return make_stream(s);
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {  // a real one lets the work finish; here it must be over
    EMU_CUDA_CALL(cudaErrorUnknown);
    const std::lock_guard lock(devices().mutex);
    if (!s->idle()) throw Fault("cudaStreamDestroy of stream " + std::to_string(s->id) + " with work left");
    return cudaSuccess;
}

static void wait_for(cudaStream_t s) {
    wait_until(s->device, [s] { return s->idle(); });
    const std::lock_guard lock(devices().mutex);
    join(devices().host, s->clock);
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    EMU_CUDA_CALL(cudaErrorUnknown);
    if (s != nullptr) wait_for(s);
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
    EMU_CUDA_CALL(cudaErrorUnknown);
    for (auto& s : devices().streams)
        if (s->device == current_device()) wait_for(s.get());
    return cudaSuccess;
}
/// Time passes only while the host asks: who polls must see progress.
cudaError_t cudaStreamQuery(cudaStream_t s) {
    EMU_CUDA_CALL(cudaErrorUnknown);
    pass_time(s->device);
    const std::lock_guard lock(devices().mutex);
    if (!s->idle()) return cudaErrorNotReady;
    join(devices().host, s->clock);
    return cudaSuccess;
}

static cudaError_t make_event(cudaEvent_t* e, bool timed) {
    const std::lock_guard lock(devices().mutex);
    devices().events.push_back(std::make_unique<CUevent_st>());
    *e = devices().events.back().get();
    (*e)->timed = timed;
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned flags) {
    EMU_CUDA_CALL(cudaErrorUnknown);
    return make_event(e, (flags & cudaEventDisableTiming) == 0);
}
cudaError_t cudaEventCreate(cudaEvent_t* e) {
    EMU_CUDA_CALL(cudaErrorUnknown);
    return make_event(e, true);
}
cudaError_t cudaEventDestroy(cudaEvent_t) {
    EMU_CUDA_CALL(cudaErrorUnknown);
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    EMU_CUDA_CALL(cudaErrorUnknown);
    const std::lock_guard lock(devices().mutex);
    const unsigned long generation = ++e->wanted;
    const auto reach = [e, generation] {
        e->reached = std::max(e->reached, generation);  // streams that nothing orders may record it in the other order
        e->when = std::chrono::steady_clock::now();
        return true;
    };
    enqueue(s, "cudaEventRecord", {}, reach, false, false);
    e->recorded = true;
    e->clock = s->clock;
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
    EMU_CUDA_CALL(cudaErrorUnknown);
    Devices& d = devices();
    const std::lock_guard lock(d.mutex);
    if (!e->recorded) return cudaSuccess;  // as documented: no wait at all
    Clock known = s->clock;
    join(known, d.host);
    if (join(known, e->clock) && call_fails("useful wait")) return cudaSuccess;
    const unsigned long generation = e->wanted;
    enqueue(
        s, "cudaStreamWaitEvent", {}, [e, generation] { return e->reached >= generation; }, false, false);
    join(s->clock, e->clock);
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
    EMU_CUDA_CALL(cudaErrorUnknown);
    pass_time(current_device());
    const std::lock_guard lock(devices().mutex);
    if (e->reached != e->wanted) return cudaErrorNotReady;
    join(devices().host, e->clock);
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    EMU_CUDA_CALL(cudaErrorUnknown);
    const unsigned long generation = e->wanted;
    wait_until(current_device(), [=] { return e->reached >= generation; });
    const std::lock_guard lock(devices().mutex);
    join(devices().host, e->clock);
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
    EMU_CUDA_CALL(cudaErrorUnknown);
    const std::lock_guard lock(devices().mutex);
    if (!from->timed || !to->timed || !from->recorded || !to->recorded) return result(cudaErrorInvalidResourceHandle);
    if (from->reached != from->wanted || to->reached != to->wanted) return cudaErrorNotReady;
    *milliseconds = std::chrono::duration<float, std::milli>(to->when - from->when).count();
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void* data) {
    EMU_CUDA_CALL(cudaErrorUnknown);
    enqueue(
        s, "cudaLaunchHostFunc", {}, [=] { return f(data), true; }, true);
    return cudaSuccess;
}
}
