#include "train/batch.hpp"

#include "sherd/backend/arena.hpp"

#include <algorithm>
#include <numeric>

namespace sherd {

HostBatch pack(const std::vector<Document>& documents) {
    HostBatch b;
    b.offsets.push_back(0);
    for (const Document& d : documents) {
        const auto n = static_cast<std::int64_t>(d.tokens.size());
        for (std::int64_t i = 0; i < n; ++i) {
            const auto next = static_cast<std::size_t>(i + 1);
            const bool is_target = i + 1 < n && d.is_target[next] != 0;
            b.targets.push_back(is_target ? d.tokens[next] : -1);
            b.positions.push_back(static_cast<std::int32_t>(i));
            b.target_count += is_target ? 1 : 0;
        }
        b.ids.insert(b.ids.end(), d.tokens.begin(), d.tokens.end());
        b.tokens += n;
        b.longest = std::max(b.longest, n);
        b.offsets.push_back(static_cast<std::int32_t>(b.tokens));
    }
    b.documents = static_cast<std::int64_t>(documents.size());
    const auto rows = static_cast<std::size_t>(bucket_rows(b.tokens));
    b.ids.resize(rows, -1);
    b.targets.resize(rows, -1);
    b.positions.resize(rows, 0);
    return b;
}

namespace {
std::uint64_t row_bytes(std::int64_t rows) {
    return static_cast<std::uint64_t>(rows) * sizeof(std::int32_t);
}
}  // namespace

std::uint64_t BatchBuffers::bytes(std::int64_t rows) {
    const std::int64_t padded = bucket_rows(rows);
    return 2 * (3 * (row_bytes(padded) + Arena::alignment) + row_bytes(padded + 1) + Arena::alignment);
}

BatchBuffers::BatchBuffers(Backend& backend, Stream& compute, Stream& copies, std::int64_t rows)
    : backend_(backend), compute_(compute), copies_(copies), memory_(backend, bytes(rows), "micro-batch") {
    Arena arena(memory_.data());
    const std::int64_t padded = bucket_rows(rows);
    for (Slot& slot : slots_) {
        slot.ids = arena.take<std::int32_t>(row_bytes(padded), "ids");
        slot.targets = arena.take<std::int32_t>(row_bytes(padded), "targets");
        slot.positions = arena.take<std::int32_t>(row_bytes(padded), "positions");
        slot.offsets = arena.take<std::int32_t>(row_bytes(padded + 1), "offsets");  // a document has at least one token
        slot.there = backend.make_event();
        slot.used = backend.make_event();
    }
}

DeviceBatch BatchBuffers::upload(const HostBatch& b) {
    backend_.record(*slots_[current_].used, compute_);
    current_ = 1 - current_;
    const Slot& slot = slots_[current_];
    if (b.rows() == 0) return {};
    backend_.wait(copies_, *slot.used);
    const auto copy = [&](std::int32_t* to, const std::vector<std::int32_t>& from) {
        backend_.copy_to_device(copies_, to, from.data(), from.size() * sizeof(std::int32_t));
    };
    copy(slot.ids, b.ids);
    copy(slot.targets, b.targets);
    copy(slot.positions, b.positions);
    copy(slot.offsets, b.offsets);
    backend_.record(*slot.there, copies_);
    backend_.wait(compute_, *slot.there);
    return {slot.ids, slot.targets, slot.positions, {slot.offsets, b.documents, b.longest}, b.rows()};
}

}  // namespace sherd
