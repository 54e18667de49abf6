// The device itself: memory, streams, copies. The operations are in cuda_operations.cpp.
#include "backend/cuda/cuda_backend.hpp"

#include "backend/cuda/check.hpp"
#include "backend/cuda/trace.hpp"

#include "sherd/runtime/error.hpp"

#include <algorithm>

namespace sherd::cuda {

namespace {

/// The run time keeps the current GPU by thread; ranks may be threads of one process.
thread_local int current_gpu = -1;

/// Scratch of streams that copy and communicate: partial sums only.
constexpr std::size_t small_scratch_bytes = std::size_t{64} << 10;

bool is_side_stream(const std::string& name) {
    return name == "communication" || name == "copy";
}

}  // namespace

cudaStream_t native(Stream& stream) {
    return static_cast<CudaStream&>(stream).get();
}

CudaBackend::CudaBackend(const Gpu& gpu, const CudaOptions& options) : gpu_(gpu), options_(options), memory_(gpu, options.memory_limit) {
    current_gpu = -1;  // whatever it was: this call also makes the context
    use();
    products_ = std::make_unique<Products>(options_.tf32);
    attention_ = make_cudnn_attention(gpu_, options_.attention);
}

CudaBackend::~CudaBackend() = default;

std::string CudaBackend::description() const {
    return gpu_.description() + (attention_ ? ", attention by " + attention_->description() + " where it serves" : "");
}

void CudaBackend::use() const {
    if (current_gpu == gpu_.index) return;
    SHERD_CUDA(cudaSetDevice(gpu_.index));
    current_gpu = gpu_.index;
}

bool CudaBackend::has_native(DType compute) const {
    if (compute == DType::f32) return true;
    if (compute == DType::bf16) return gpu_.major >= 8;
    return compute == DType::f16 && gpu_.major >= 7;
}

bool CudaBackend::can_compute(DType compute) const {
    return has_native(compute);
}

std::uint64_t CudaBackend::available_memory_bytes() const {
    use();
    return memory_.available();
}
std::string CudaBackend::memory_report() const {
    use();
    return memory_.report();
}
std::uint64_t CudaBackend::peak_memory_bytes() const {
    use();
    return memory_.peak();
}

void CudaBackend::reserve(std::size_t bytes, const std::string& purpose) {
    use();
    memory_.reserve(bytes, purpose);
}
void* CudaBackend::allocate(std::size_t bytes, const std::string& purpose) {
    if (bytes == 0) return nullptr;
    use();
    return memory_.allocate(bytes, purpose);
}
void CudaBackend::release(void* data, std::size_t) noexcept {
    memory_.release(data);
}

void* CudaBackend::allocate_host(std::size_t bytes, const std::string& purpose) {
    if (bytes == 0) return nullptr;
    use();
    void* data = nullptr;
    const cudaError_t code = cudaHostAlloc(&data, bytes, cudaHostAllocDefault);
    if (code == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        throw DeviceError("cannot pin {} of host memory for {} on rank {} (host {}); is a limit on locked memory set (ulimit -l)?",
                          readable_bytes(bytes), purpose, process_rank(), host_name());
    }
    check_cuda(code, "cudaHostAlloc()", __FILE__, __LINE__);
    pinned_[static_cast<const unsigned char*>(data)] = bytes;
    return data;
}

void CudaBackend::release_host(void* data, std::size_t) noexcept {
    pinned_.erase(static_cast<const unsigned char*>(data));
    (void)unreported(cudaFreeHost(data));
}

bool CudaBackend::is_pinned(const void* host, std::size_t bytes) const noexcept {
    const auto* at = static_cast<const unsigned char*>(host);
    auto block = pinned_.upper_bound(at);
    if (block == pinned_.begin()) return false;
    --block;
    return at + bytes <= block->first + block->second;
}

std::size_t CudaBackend::stream_bytes(const std::string& name) const {
    return is_side_stream(name) ? small_scratch_bytes : Products::workspace_bytes;
}

std::unique_ptr<Stream> CudaBackend::make_stream(const std::string& name) {
    use();
    DeviceMemory scratch(*this, stream_bytes(name), "workspace of stream '" + name + "'");
    // communication first: what others wait for, and it takes few of the GPU's processors
    return std::make_unique<CudaStream>(name, is_side_stream(name), std::move(scratch), *this, watchers_);
}

std::unique_ptr<Event> CudaBackend::make_event() {
    use();
    return std::make_unique<CudaEvent>();
}

CudaStream& CudaBackend::enter(Stream& stream, const char* operation) const {
    use();
    auto& s = static_cast<CudaStream&>(stream);
    trace_operation(operation);
    s.enqueues(operation);
    return s;
}

void CudaBackend::record(Event& event, Stream& stream) {
    SHERD_CUDA(cudaEventRecord(static_cast<CudaEvent&>(event).get(), enter(stream, "record").get()));
}
void CudaBackend::wait(Stream& stream, Event& event) {
    SHERD_CUDA(cudaStreamWaitEvent(enter(stream, "wait").get(), static_cast<CudaEvent&>(event).get(), 0));
}
void CudaBackend::synchronize(Stream& stream) {
    use();
    static_cast<CudaStream&>(stream).synchronize();
}
void CudaBackend::host_task(Stream& stream, std::function<void()> task) {
    enter(stream, "host_task").host_function(std::move(task));
}

void CudaBackend::copy_to_device(Stream& stream, void* device, const void* host, std::size_t bytes) {
    if (bytes == 0) return;
    CudaStream& s = enter(stream, "copy_to_device");
    if (!is_pinned(host, bytes)) return s.staging().up(s, device, host, bytes);
    SHERD_CUDA(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, s.get()));
}
void CudaBackend::copy_to_host(Stream& stream, void* host, const void* device, std::size_t bytes) {
    if (bytes == 0) return;
    CudaStream& s = enter(stream, "copy_to_host");
    if (!is_pinned(host, bytes)) return s.staging().down(s, host, device, bytes);
    SHERD_CUDA(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, s.get()));
}
void CudaBackend::copy(Stream& stream, void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    SHERD_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, enter(stream, "copy").get()));
}
void CudaBackend::zero(Stream& stream, void* data, std::size_t bytes) {
    if (bytes == 0) return;
    SHERD_CUDA(cudaMemsetAsync(data, 0, bytes, enter(stream, "zero").get()));
}

/// Memory for partial results of one operation: the stream's own, free again when the next operation of the stream starts.
void* CudaBackend::scratch_of(CudaStream& stream, std::uint64_t bytes) const {
    if (bytes > stream.scratch().bytes())
        throw DeviceError("{} needs {} of scratch, and stream '{}' has {}", stream.last_operation(), readable_bytes(bytes), stream.name(),
                          readable_bytes(stream.scratch().bytes()));
    return stream.scratch().data();
}

}  // namespace sherd::cuda
