// A movement goes in rounds, since pinned memory is of fixed size: in a round every rank handles the same window of the intervals that
// matter, those of the sources for copies, those of the owners for sums. All ranks know all tables and so count the same rounds.
#include "comm/staged_movement.hpp"

#include "comm/wire.hpp"

#include <algorithm>
#include <cstring>

namespace sherd::detail {

namespace {

constexpr std::int64_t staging_bytes = 16 << 20;  // in each direction, over all ranks
constexpr std::int64_t least_slot = 64 << 10;

/// Address of element `e` in memory whose first element is `first`.
template <class Byte>
Byte* address(Byte* memory, Interval held, std::int64_t e, std::int64_t element) {
    return memory + (e - held.begin) * element;
}

std::int64_t element_bytes(DType type) {
    return static_cast<std::int64_t>(size_of(type));
}

}  // namespace

StagedMovement::StagedMovement(Backend& backend, Messages& messages, int rank, int size)
    : backend_(backend),
      messages_(messages),
      rank_(rank),
      size_(size),
      slot_(size == 1 ? 0 : std::max(least_slot, staging_bytes / size / 256 * 256)) {
    if (size == 1) return;
    const auto all = static_cast<std::size_t>(slot_ * size_);
    outgoing_ = HostMemory(backend, all, "outgoing messages");
    incoming_ = HostMemory(backend, all, "incoming messages");
    result_ = HostMemory(backend, static_cast<std::size_t>(slot_), "sums");
    encoded_.resize(all / sizeof(float));
}

std::uint64_t StagedMovement::bytes() const noexcept {
    return outgoing_.bytes() + incoming_.bytes() + result_.bytes() + encoded_.size() * sizeof(std::uint16_t);
}

void StagedMovement::enqueue(Stream& stream, const Redistribution& movement, CollectiveTag tag) {
    if (movement.mode == Redistribution::Mode::sum && size_ > 1)
        sum(stream, movement, tag);
    else
        copy(stream, movement, tag);
}

void StagedMovement::copy(Stream& stream, const Movement& m, CollectiveTag tag) {
    copy_own(stream, m);
    if (size_ == 1) return;
    const std::int64_t length = slot_ / element_bytes(m.dtype), end = longest(m.sources);
    for (std::int64_t at = 0; at < end; at += length) copy_round(stream, m, tag, at, length);
}

void StagedMovement::copy_own(Stream& stream, const Movement& m) {
    const std::int64_t element = element_bytes(m.dtype);
    const Interval held = m.sources[index(rank_)], wanted = m.owners[index(rank_)], own = intersect(held, wanted);
    if (own.empty()) return;
    const auto* from = address(static_cast<const unsigned char*>(m.from), held, own.begin, element);
    auto* to = address(static_cast<unsigned char*>(m.to), wanted, own.begin, element);
    if (from != to) backend_.copy(stream, to, from, static_cast<std::size_t>(own.size() * element));
}

void StagedMovement::copy_round(Stream& stream, const Movement& m, CollectiveTag tag, std::int64_t at, std::int64_t length) {
    const std::int64_t element = element_bytes(m.dtype);
    const Interval held = m.sources[index(rank_)], wanted = m.owners[index(rank_)], mine = window(held, at, length);
    // one copy for all ranks: from the first element that any of them wants to the last
    Interval leaving{mine.end, mine.begin};
    bool arrives = false;
    for (int peer = 0; peer < size_; ++peer) {
        if (peer == rank_) continue;
        const Interval part = intersect(mine, m.owners[index(peer)]);
        if (!part.empty()) leaving = {std::min(leaving.begin, part.begin), std::max(leaving.end, part.end)};
        arrives = arrives || !intersect(window(m.sources[index(peer)], at, length), wanted).empty();
    }
    if (leaving.empty() && !arrives) return;
    if (!leaving.empty())
        backend_.copy_to_host(stream, outgoing(0), address(static_cast<const unsigned char*>(m.from), held, leaving.begin, element),
                              static_cast<std::size_t>(leaving.size() * element));
    backend_.host_task(stream, [this, m, tag, at, length, leaving, mine, wanted, element] {
        for (int peer = 0; peer < size_; ++peer) {
            if (peer == rank_) continue;
            const Interval in = intersect(window(m.sources[index(peer)], at, length), wanted);
            if (!in.empty()) messages_.receive(peer, incoming(peer), in.size() * element);
            const Interval out = intersect(mine, m.owners[index(peer)]);
            if (!out.empty()) messages_.send(peer, outgoing(0) + (out.begin - leaving.begin) * element, out.size() * element);
        }
        messages_.finish(tag);
    });
    for (int peer = 0; peer < size_; ++peer) {
        const Interval in = intersect(window(m.sources[index(peer)], at, length), wanted);
        if (peer == rank_ || in.empty()) continue;
        backend_.copy_to_device(stream, address(static_cast<unsigned char*>(m.to), wanted, in.begin, element), incoming(peer),
                                static_cast<std::size_t>(in.size() * element));
    }
}

void StagedMovement::sum(Stream& stream, const Movement& m, CollectiveTag tag) {
    const std::int64_t length = slot_ / element_bytes(DType::f32), end = longest(m.owners);
    for (std::int64_t at = 0; at < end; at += length) sum_round(stream, m, tag, at, length);
}

/// In a round this rank sends every owner its addends of the owner's window, and sums its own window. Its own addends lie where those of a
/// peer would.
void StagedMovement::sum_round(Stream& stream, const Movement& m, CollectiveTag tag, std::int64_t at, std::int64_t length) {
    const Interval held = m.sources[index(rank_)], owned = m.owners[index(rank_)], mine = window(owned, at, length);
    bool any = !mine.empty();
    for (int peer = 0; peer < size_; ++peer) {
        const Interval part = intersect(held, window(m.owners[index(peer)], at, length));
        if (part.empty()) continue;
        any = true;
        backend_.copy_to_host(stream, peer == rank_ ? incoming(peer) : outgoing(peer),
                              address(static_cast<const unsigned char*>(m.from), held, part.begin, 4),
                              static_cast<std::size_t>(part.size()) * sizeof(float));
    }
    if (!any) return;
    backend_.host_task(stream, [this, m, tag, at, length, mine] {
        exchange_addends(m, tag, at, length);
        add_up_window(m, mine);
    });
    if (mine.empty()) return;
    backend_.copy_to_device(stream, address(static_cast<unsigned char*>(m.to), owned, mine.begin, 4), result_.data(),
                            static_cast<std::size_t>(mine.size()) * sizeof(float));
}

void StagedMovement::exchange_addends(const Movement& m, CollectiveTag tag, std::int64_t at, std::int64_t length) {
    const std::int64_t element = element_bytes(m.wire);
    const Interval mine = window(m.owners[index(rank_)], at, length);
    for (int peer = 0; peer < size_; ++peer) {
        if (peer == rank_) continue;
        const Interval in = intersect(m.sources[index(peer)], mine);
        if (!in.empty()) messages_.receive(peer, incoming(peer), in.size() * element);
        const Interval out = intersect(m.sources[index(rank_)], window(m.owners[index(peer)], at, length));
        if (out.empty()) continue;
        const void* data = outgoing(peer);
        if (m.wire != DType::f32) {
            std::uint16_t* low = encoded_.data() + static_cast<std::int64_t>(peer) * length;
            encode(static_cast<const float*>(data), out.size(), m.wire, low);
            data = low;
        }
        messages_.send(peer, data, out.size() * element);
    }
    messages_.finish(tag);
}

void StagedMovement::add_up_window(const Movement& m, Interval mine) {
    addends_.clear();
    for (int r = 0; r < size_; ++r)
        addends_.push_back({intersect(m.sources[index(r)], mine), incoming(r), r == rank_ ? DType::f32 : m.wire});
    add_up(mine, addends_, result_.as<float>());
}

}  // namespace sherd::detail
