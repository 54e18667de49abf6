#pragma once
/// The memory of a GPU that this process takes: one arena for all that was planned, and blocks of their own for what comes without a plan.
#include "backend/memory_account.hpp"

#include "sherd/backend/arena.hpp"
#include "sherd/backend/devices.hpp"

#include <cstdint>
#include <string>

namespace sherd::cuda {

/// Of the current GPU. Who calls has made it current.
class DeviceAllocator {
  public:
    /// limit: bytes that this process may take; 0: all.
    DeviceAllocator(const Gpu& gpu, std::uint64_t limit) : gpu_(gpu), limit_(limit) {}
    ~DeviceAllocator();
    DeviceAllocator(const DeviceAllocator&) = delete;
    DeviceAllocator& operator=(const DeviceAllocator&) = delete;

    /// The arena: allocate() cuts its parts from it, one behind another, while they fit. Once in a life. Throws OutOfMemoryError,
    /// DeviceError.
    void reserve(std::uint64_t bytes, const std::string& purpose);
    /// Throws OutOfMemoryError, which says who holds what, and DeviceError.
    void* allocate(std::uint64_t bytes, const std::string& purpose);
    /// A part of the arena stays the arena's: what was planned is held to the end.
    void release(void* data) noexcept;

    /// Bytes that are free on the GPU, whatever the limit says.
    std::uint64_t available() const;
    /// Free memory as the driver says, and who holds how much, largest first. As Backend::memory_report.
    std::string report() const;
    /// The most that was in use on the GPU at any of the calls so far, by whoever shares it.
    std::uint64_t peak() const;

  private:
    void* take(std::uint64_t bytes, const std::string& purpose);
    [[noreturn]] void refuse(std::uint64_t bytes, const std::string& purpose, std::uint64_t free) const;
    std::string report(std::uint64_t free, const std::string& remark) const;
    bool in_arena(const void* data) const noexcept;

    Gpu gpu_;
    std::uint64_t limit_;
    MemoryAccount blocks_;  ///< taken from the driver
    MemoryAccount parts_;   ///< in use: of the arena and beside it
    unsigned char* block_ = nullptr;
    std::uint64_t block_bytes_ = 0;
    Arena arena_;
    mutable std::uint64_t peak_ = 0;
};

}  // namespace sherd::cuda
