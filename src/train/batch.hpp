#pragma once
/// From documents to a micro-batch in device memory.
#include "sherd/data/token_file.hpp"
#include "sherd/model/decoder.hpp"

#include <array>
#include <cstdint>
#include <memory>
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

/// Device memory of two micro-batches in turn: one is copied up while the one before it computes.
class BatchBuffers {
  public:
    /// rows: capacity. copies: the stream of the copies, which may be `compute` itself. Throws DeviceError.
    BatchBuffers(Backend& backend, Stream& compute, Stream& copies, std::int64_t rows);
    static std::uint64_t bytes(std::int64_t rows);
    /// Enqueues the copies and lets `compute` wait for them. All that uses the micro-batch uploaded before must be enqueued there by now.
    /// `batch` must stay alive until the stream of the copies has passed them.
    DeviceBatch upload(const HostBatch& batch);

  private:
    struct Slot {
        std::int32_t *ids, *targets, *positions, *offsets;
        std::unique_ptr<Event> there, used;
    };
    Backend& backend_;
    Stream &compute_, &copies_;
    DeviceMemory memory_;
    std::array<Slot, 2> slots_;
    std::size_t current_ = 0;
};

}  // namespace sherd
