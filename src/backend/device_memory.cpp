#include "sherd/backend/backend.hpp"

#include <exception>
#include <utility>

namespace sherd {

namespace {

template <MemoryPlace place>
void* allocate(Backend& backend, std::size_t bytes, const std::string& purpose) {
    return place == MemoryPlace::device ? backend.allocate(bytes, purpose) : backend.allocate_host(bytes, purpose);
}

template <MemoryPlace place>
void release(Backend& backend, void* data, std::size_t bytes) noexcept {
    if (place == MemoryPlace::device)
        backend.release(data, bytes);
    else
        backend.release_host(data, bytes);
}

}  // namespace

template <MemoryPlace place>
OwnedMemory<place>::OwnedMemory(Backend& backend, std::size_t bytes, const std::string& purpose)
    : backend_(&backend), data_(allocate<place>(backend, bytes, purpose)), bytes_(bytes) {}

template <MemoryPlace place>
OwnedMemory<place>::OwnedMemory(OwnedMemory&& other) noexcept
    : backend_(std::exchange(other.backend_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

template <MemoryPlace place>
OwnedMemory<place>& OwnedMemory<place>::operator=(OwnedMemory&& other) noexcept {
    if (this != &other) {
        if (data_ != nullptr) release<place>(*backend_, data_, bytes_);
        backend_ = std::exchange(other.backend_, nullptr);
        data_ = std::exchange(other.data_, nullptr);
        bytes_ = std::exchange(other.bytes_, 0);
    }
    return *this;
}

template <MemoryPlace place>
OwnedMemory<place>::~OwnedMemory() {
    if (data_ != nullptr) release<place>(*backend_, data_, bytes_);
}

template class OwnedMemory<MemoryPlace::device>;
template class OwnedMemory<MemoryPlace::host>;

StreamGuard::~StreamGuard() {
    // errors of the stream stay for the next to ask where none is under way; while unwinding the first error is the one that counts
    if (std::uncaught_exceptions() == 0) return;
    try {
        backend_.synchronize(stream_);
    } catch (...) {  // NOLINT(bugprone-empty-catch)
    }
}

}  // namespace sherd
