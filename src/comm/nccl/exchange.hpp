#pragma once
/// Redistributions that are no single collective of NCCL: messages between pairs of ranks, and sums taken on the GPU in rank order, so that
/// the bits are those of any other communicator.
#include "backend/cuda/cuda_backend.hpp"
#include "comm/nccl/handle.hpp"

#include "sherd/comm/communicator.hpp"

#include <string>

namespace sherd::detail {

ncclDataType_t nccl_type(DType type);

/// Device memory of sums, for all communicators of a rank: their collectives follow one another on one stream.
class NcclStaging {
  public:
    /// elements: over all ranks, of which there are two or more; each needs 64.
    explicit NcclStaging(cuda::CudaBackend& backend, std::int64_t elements = 8 << 20) : backend_(backend), elements_(elements) {}
    std::int64_t elements() const noexcept { return elements_; }
    std::uint64_t bytes() const noexcept { return static_cast<std::uint64_t>(elements_) * (sizeof(float) + sizeof(std::uint16_t)); }
    /// Allocates where that has not been done. Throws DeviceError.
    void allocate();
    float* incoming() const noexcept { return memory_.as<float>(); }
    std::uint16_t* outgoing() const noexcept { return reinterpret_cast<std::uint16_t*>(incoming() + elements_); }

  private:
    cuda::CudaBackend& backend_;
    std::int64_t elements_;
    DeviceMemory memory_;
};

class NcclExchange {
  public:
    NcclExchange(cuda::CudaBackend& backend, NcclStaging& staging, int rank, int size);

    /// what: for messages.
    void copy(NcclHandle& nccl, cuda::CudaStream& stream, const Redistribution& movement, const std::string& what);
    void sum(NcclHandle& nccl, cuda::CudaStream& stream, const Redistribution& movement, const std::string& what);

  private:
    void sum_round(NcclHandle& nccl, cuda::CudaStream& stream, const Redistribution& m, std::int64_t at, const std::string& what);
    void encode_addends(cuda::CudaStream& stream, const Redistribution& m, std::int64_t at);
    void add_up(cuda::CudaStream& stream, const Redistribution& m, Interval mine);
    float* incoming(int rank) const noexcept { return staging_.incoming() + rank * slot_; }
    /// 16-bit elements of the wire.
    std::uint16_t* outgoing(int rank) const noexcept { return staging_.outgoing() + rank * slot_; }

    cuda::CudaBackend& backend_;
    NcclStaging& staging_;
    int rank_, size_;
    std::int64_t slot_;  ///< elements to or from one rank in one round
};

}  // namespace sherd::detail
