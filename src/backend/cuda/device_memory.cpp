#include "backend/cuda/device_memory.hpp"

#include "backend/cuda/check.hpp"

#include "sherd/runtime/error.hpp"

#include <algorithm>
#include <utility>

namespace sherd::cuda {

namespace {

std::pair<std::uint64_t, std::uint64_t> free_and_total() {
    std::size_t free = 0, total = 0;
    SHERD_CUDA(cudaMemGetInfo(&free, &total));
    return {free, total};
}

}  // namespace

DeviceAllocator::~DeviceAllocator() {
    if (block_ != nullptr) (void)unreported(cudaFree(block_));
}

std::uint64_t DeviceAllocator::available() const {
    return free_and_total().first;
}

std::uint64_t DeviceAllocator::peak() const {
    const auto [free, total] = free_and_total();
    return peak_ = std::max(peak_, total - free);
}

void DeviceAllocator::refuse(std::uint64_t bytes, const std::string& purpose, std::uint64_t free) const {
    const std::string limit = limit_ > 0 ? fmt::format(" (device.memory_limit {})", readable_bytes(limit_)) : "";
    throw OutOfMemoryError("cannot allocate {} for {} on GPU {} ({}) of rank {} (host {}): {}", readable_bytes(bytes), purpose, gpu_.index,
                           gpu_.name, process_rank(), host_name(), report(free, limit));
}

std::string DeviceAllocator::report(std::uint64_t free, const std::string& remark) const {
    MemoryAccount all = parts_;
    if (blocks_.held() > parts_.held()) all.add(this, blocks_.held() - parts_.held(), "planned and not in use");
    return fmt::format("{} of {} are free{}. This rank holds {}: {}", readable_bytes(free), readable_bytes(gpu_.memory_bytes), remark,
                       readable_bytes(all.held()), all.largest_first());
}

std::string DeviceAllocator::report() const {
    return report(available(), "");
}

void* DeviceAllocator::take(std::uint64_t bytes, const std::string& purpose) {
    if (limit_ > 0 && blocks_.held() + bytes > limit_) refuse(bytes, purpose, std::min(available(), limit_ - blocks_.held()));
    void* data = nullptr;
    const cudaError_t code = cudaMalloc(&data, bytes);
    if (code == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        refuse(bytes, purpose, available());
    }
    check_cuda(code, "cudaMalloc()", __FILE__, __LINE__);
    blocks_.add(data, bytes, purpose);
    return data;
}

void DeviceAllocator::reserve(std::uint64_t bytes, const std::string& purpose) {
    if (block_ != nullptr) throw DeviceError("the memory of GPU {} is planned twice", gpu_.index);
    block_ = static_cast<unsigned char*>(take(bytes, purpose));
    block_bytes_ = bytes;
    arena_ = Arena(block_);
}

void* DeviceAllocator::allocate(std::uint64_t bytes, const std::string& purpose) {
    const bool fits = arena_.bytes() + bytes <= block_bytes_;
    void* const data = fits ? arena_.take(bytes, purpose) : take(bytes, purpose);
    parts_.add(data, bytes, purpose);
    return data;
}

bool DeviceAllocator::in_arena(const void* data) const noexcept {
    const auto* at = static_cast<const unsigned char*>(data);
    return at >= block_ && at < block_ + block_bytes_;
}

void DeviceAllocator::release(void* data) noexcept {
    parts_.remove(data);
    if (in_arena(data)) return;
    blocks_.remove(data);
    (void)unreported(cudaFree(data));
}

}  // namespace sherd::cuda
