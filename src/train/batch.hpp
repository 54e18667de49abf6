#pragma once
/// From documents to a micro-batch in device memory.
#include "sherd/data/token_file.hpp"
#include "sherd/model/decoder.hpp"

#include <cstdint>
#include <vector>

namespace sherd {

/// A micro-batch on the host, packed: documents one after another, then surplus rows up to the bucket.
struct HostBatch {
    std::vector<std::int32_t> ids, targets, positions, offsets;
    std::int64_t documents = 0, longest = 0, tokens = 0, target_count = 0;
    std::int64_t rows() const noexcept { return static_cast<std::int64_t>(ids.size()); }
};

/// Packs documents. targets[t] is the id of the token after t where that is a target of the same document, else -1.
HostBatch pack(const std::vector<Document>& documents);

/// Device memory of one micro-batch, reused by the next in stream order.
class BatchBuffers {
  public:
    /// rows: capacity. Throws DeviceError.
    BatchBuffers(Backend& backend, std::int64_t rows);
    static std::uint64_t bytes(std::int64_t rows);
    /// Enqueues the copies; `batch` must stay alive until the stream has passed them.
    DeviceBatch upload(Stream& stream, const HostBatch& batch);

  private:
    Backend& backend_;
    DeviceMemory memory_;
    std::int32_t *ids_, *targets_, *positions_, *offsets_;
};

}  // namespace sherd
