#pragma once
/// Copies between device memory and host memory that is not pinned, through pinned memory of fixed size. cudaMemcpyAsync would take such
/// host memory too, but stop the host until all earlier work of the stream is done.
#include "backend/cuda/event.hpp"

#include "sherd/backend/backend.hpp"

#include <array>
#include <cstddef>
#include <string>

namespace sherd::cuda {

class CudaStream;

class Staging {
  public:
    static constexpr std::size_t half_bytes = std::size_t{2} << 20;  ///< of two for copies up; one more for copies down

    Staging(Backend& backend, const std::string& stream_name);
    Staging(const Staging&) = delete;
    Staging& operator=(const Staging&) = delete;

    /// The host's bytes are taken now, into the half that is being filled; the host waits only where both halves are under way.
    void up(CudaStream& stream, void* device, const void* host, std::size_t bytes);
    /// Pieces go down in stream order: to pinned memory, and from there by a host function, which is done before the next piece comes.
    void down(CudaStream& stream, void* host, const void* device, std::size_t bytes);

  private:
    struct Half {
        unsigned char* data = nullptr;
        std::size_t used = 0;
        CudaEvent free;  ///< recorded behind the last copy from it
    };
    void turn(CudaStream& stream);

    HostMemory memory_;
    std::array<Half, 2> halves_;
    std::size_t filling_ = 0;
    unsigned char* down_ = nullptr;
};

}  // namespace sherd::cuda
