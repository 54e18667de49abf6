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
    return 3 * (row_bytes(padded) + Arena::alignment) + row_bytes(padded + 1) + Arena::alignment;
}

BatchBuffers::BatchBuffers(Backend& backend, std::int64_t rows) : backend_(backend), memory_(backend, bytes(rows), "micro-batch") {
    Arena arena(memory_.data());
    const std::int64_t padded = bucket_rows(rows);
    ids_ = arena.take<std::int32_t>(row_bytes(padded), "ids");
    targets_ = arena.take<std::int32_t>(row_bytes(padded), "targets");
    positions_ = arena.take<std::int32_t>(row_bytes(padded), "positions");
    offsets_ = arena.take<std::int32_t>(row_bytes(padded + 1), "offsets");  // a document has at least one token
}

DeviceBatch BatchBuffers::upload(Stream& stream, const HostBatch& b) {
    if (b.rows() == 0) return {};
    const auto copy = [&](std::int32_t* to, const std::vector<std::int32_t>& from) {
        backend_.copy_to_device(stream, to, from.data(), from.size() * sizeof(std::int32_t));
    };
    copy(ids_, b.ids);
    copy(targets_, b.targets);
    copy(positions_, b.positions);
    copy(offsets_, b.offsets);
    return {ids_, targets_, positions_, {offsets_, b.documents, b.longest}, b.rows()};
}

}  // namespace sherd
