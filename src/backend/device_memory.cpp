#include "sherd/backend/backend.hpp"

#include <exception>
#include <utility>

namespace sherd {

DeviceMemory::DeviceMemory(Backend& backend, std::size_t bytes, const std::string& purpose)
    : backend_(&backend), data_(backend.allocate(bytes, purpose)), bytes_(bytes) {}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : backend_(std::exchange(other.backend_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
    if (this != &other) {
        if (data_ != nullptr) backend_->release(data_, bytes_);
        backend_ = std::exchange(other.backend_, nullptr);
        data_ = std::exchange(other.data_, nullptr);
        bytes_ = std::exchange(other.bytes_, 0);
    }
    return *this;
}

DeviceMemory::~DeviceMemory() {
    if (data_ != nullptr) backend_->release(data_, bytes_);
}

HostMemory::HostMemory(Backend& backend, std::size_t bytes, const std::string& purpose)
    : backend_(&backend), data_(backend.allocate_host(bytes, purpose)), bytes_(bytes) {}

HostMemory::HostMemory(HostMemory&& other) noexcept
    : backend_(std::exchange(other.backend_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

HostMemory& HostMemory::operator=(HostMemory&& other) noexcept {
    if (this != &other) {
        if (data_ != nullptr) backend_->release_host(data_, bytes_);
        backend_ = std::exchange(other.backend_, nullptr);
        data_ = std::exchange(other.data_, nullptr);
        bytes_ = std::exchange(other.bytes_, 0);
    }
    return *this;
}

HostMemory::~HostMemory() {
    if (data_ != nullptr) backend_->release_host(data_, bytes_);
}

StreamGuard::~StreamGuard() {
    // errors of the stream stay for the next to ask where none is under way; while unwinding the first error is the one that counts
    if (std::uncaught_exceptions() == 0) return;
    try {
        backend_.synchronize(stream_);
    } catch (...) {  // NOLINT(bugprone-empty-catch)
    }
}

}  // namespace sherd
