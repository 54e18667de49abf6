#include "backend/cuda/staging.hpp"

#include "backend/cuda/check.hpp"
#include "backend/cuda/stream.hpp"

#include <algorithm>
#include <cstring>

namespace sherd::cuda {

namespace {
constexpr std::size_t alignment = 256;  // of pieces in pinned memory: whole bursts of the bus
}

Staging::Staging(Backend& backend, const std::string& stream_name)
    : memory_(backend, 3 * half_bytes, "staging of stream '" + stream_name + "'") {
    down_ = memory_.as<unsigned char>() + 2 * half_bytes;
    for (std::size_t i = 0; i < halves_.size(); ++i) halves_[i].data = memory_.as<unsigned char>() + i * half_bytes;
}

/// The half that was filled is free again behind what is on the stream now; the other one is filled next, once it is free.
void Staging::turn(CudaStream& stream) {
    SHERD_CUDA(cudaEventRecord(halves_[filling_].free.get(), stream.get()));
    filling_ = 1 - filling_;
    stream.await(halves_[filling_].free);  // never recorded: returns at once
    halves_[filling_].used = 0;
}

void Staging::up(CudaStream& stream, void* device, const void* host, std::size_t bytes) {
    auto* to = static_cast<unsigned char*>(device);
    const auto* from = static_cast<const unsigned char*>(host);
    while (bytes > 0) {
        if (halves_[filling_].used >= half_bytes) turn(stream);
        Half& half = halves_[filling_];
        const std::size_t piece = std::min(bytes, half_bytes - half.used);
        std::memcpy(half.data + half.used, from, piece);
        SHERD_CUDA(cudaMemcpyAsync(to, half.data + half.used, piece, cudaMemcpyHostToDevice, stream.get()));
        half.used += (piece + alignment - 1) / alignment * alignment;
        to += piece;
        from += piece;
        bytes -= piece;
    }
}

void Staging::down(CudaStream& stream, void* host, const void* device, std::size_t bytes) {
    auto* to = static_cast<unsigned char*>(host);
    const auto* from = static_cast<const unsigned char*>(device);
    for (std::size_t at = 0; at < bytes; at += half_bytes) {
        const std::size_t piece = std::min(bytes - at, half_bytes);
        SHERD_CUDA(cudaMemcpyAsync(down_, from + at, piece, cudaMemcpyDeviceToHost, stream.get()));
        stream.host_function([to = to + at, data = down_, piece] { std::memcpy(to, data, piece); });
    }
}

}  // namespace sherd::cuda
