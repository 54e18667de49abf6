#pragma once
/// Redistributions that are no single collective of NCCL: messages between pairs of ranks, and sums taken on the GPU in rank order, so that
/// the bits are those of any other communicator.
#include "backend/cuda/cuda_backend.hpp"
#include "comm/nccl/handle.hpp"

#include "sherd/comm/communicator.hpp"

#include <string>

namespace sherd::detail {

ncclDataType_t nccl_type(DType type);

class NcclExchange {
  public:
    /// Allocates all of its memory now. Throws DeviceError.
    NcclExchange(cuda::CudaBackend& backend, int rank, int size);
    std::uint64_t bytes() const noexcept { return incoming_.bytes() + outgoing_.bytes() + widened_.bytes(); }

    /// what: for messages.
    void copy(NcclHandle& nccl, cuda::CudaStream& stream, const Redistribution& movement, const std::string& what);
    void sum(NcclHandle& nccl, cuda::CudaStream& stream, const Redistribution& movement, const std::string& what);

  private:
    void sum_round(NcclHandle& nccl, cuda::CudaStream& stream, const Redistribution& m, std::int64_t at, const std::string& what);
    void encode_addends(cuda::CudaStream& stream, const Redistribution& m, std::int64_t at);
    void add_up(cuda::CudaStream& stream, const Redistribution& m, Interval mine);
    float* incoming(int rank) const noexcept { return incoming_.as<float>() + rank * slot_; }
    /// 16-bit elements of the wire.
    std::uint16_t* outgoing(int rank) const noexcept { return outgoing_.as<std::uint16_t>() + rank * slot_; }

    cuda::CudaBackend& backend_;
    int rank_, size_;
    std::int64_t slot_;  ///< elements to or from one rank in one round
    DeviceMemory incoming_, outgoing_, widened_;
};

}  // namespace sherd::detail
