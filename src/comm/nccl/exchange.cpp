#include "comm/nccl/exchange.hpp"

#include "comm/nccl/check.hpp"
#include "comm/wire.hpp"

#include <algorithm>
#include <functional>
#include <span>

namespace sherd::detail {

namespace {
std::size_t index(int rank) noexcept {
    return static_cast<std::size_t>(rank);
}
std::size_t bytes_of(Interval part, DType type) noexcept {
    return static_cast<std::size_t>(part.size()) * size_of(type);
}
const float* addends(const Redistribution& m, int rank, std::int64_t element) noexcept {
    return static_cast<const float*>(m.from) + (element - m.sources[index(rank)].begin);
}
bool overlap(std::span<const float> a, std::span<const float> b) noexcept {
    const std::less<> before;  // of pointers into different memory, too
    return before(a.data(), b.data() + b.size()) && before(b.data(), a.data() + a.size());
}
std::span<const float> floats(const float* begin, Interval part) noexcept {
    return {begin, static_cast<std::size_t>(part.size())};
}
}  // namespace

ncclDataType_t nccl_type(DType type) {
    switch (type) {
        case DType::f32:
            return ncclFloat32;
        case DType::bf16:
            return ncclBfloat16;
        case DType::f16:
            return ncclFloat16;
        case DType::i32:
            return ncclInt32;
        default:
            throw DeviceError("NCCL is not asked to move {}", name_of(type));
    }
}

void NcclStaging::allocate() {
    if (memory_.data() == nullptr) memory_ = DeviceMemory(backend_, bytes(), "communication staging");
}

// slots begin at multiples of 64 elements: an even number of 16-byte pieces of either width
NcclExchange::NcclExchange(cuda::CudaBackend& backend, NcclStaging& staging, int rank, int size)
    : backend_(backend), staging_(staging), rank_(rank), size_(size), slot_(staging.elements() / std::max(2, size) / 64 * 64) {}

void NcclExchange::copy(NcclHandle& nccl, cuda::CudaStream& stream, const Redistribution& m, const std::string& what) {
    const auto element = static_cast<std::int64_t>(size_of(m.dtype));
    const Interval held = m.sources[index(rank_)], wanted = m.owners[index(rank_)], own = intersect(held, wanted);
    const auto* from = static_cast<const char*>(m.from);
    auto* to = static_cast<char*>(m.to);
    NcclGroup group;
    for (int peer = 0; peer < size_; ++peer) {
        if (peer == rank_) continue;
        const Interval in = intersect(m.sources[index(peer)], wanted), out = intersect(held, m.owners[index(peer)]);
        if (!out.empty())
            SHERD_NCCL(ncclSend(from + (out.begin - held.begin) * element, static_cast<std::size_t>(out.size()), nccl_type(m.dtype), peer,
                                nccl.get(), stream.get()));
        if (!in.empty())
            SHERD_NCCL(ncclRecv(to + (in.begin - wanted.begin) * element, static_cast<std::size_t>(in.size()), nccl_type(m.dtype), peer,
                                nccl.get(), stream.get()));
    }
    group.end();
    nccl.settle(what);
    const char* source = from + (own.begin - held.begin) * element;
    char* destination = to + (own.begin - wanted.begin) * element;
    if (!own.empty() && source != destination) backend_.copy(stream, destination, source, bytes_of(own, m.dtype));
}

void NcclExchange::sum(NcclHandle& nccl, cuda::CudaStream& stream, const Redistribution& m, const std::string& what) {
    staging_.allocate();
    const std::int64_t end = longest(m.owners);
    for (std::int64_t at = 0; at < end; at += slot_) sum_round(nccl, stream, m, at, what);
}

void NcclExchange::encode_addends(cuda::CudaStream& stream, const Redistribution& m, std::int64_t at) {
    for (int peer = 0; peer < size_; ++peer) {
        const Interval out = intersect(m.sources[index(rank_)], window(m.owners[index(peer)], at, slot_));
        if (peer == rank_ || out.empty()) continue;
        // a cast reads only
        auto* from = const_cast<float*>(addends(m, rank_, out.begin));
        backend_.cast(stream, {outgoing(peer), m.wire, 1, out.size()}, {from, DType::f32, 1, out.size()});
    }
}

/// All ranks exchange their addends of one window of every owner, and each adds up its own window.
void NcclExchange::sum_round(NcclHandle& nccl, cuda::CudaStream& stream, const Redistribution& m, std::int64_t at,
                             const std::string& what) {
    const Interval held = m.sources[index(rank_)], mine = window(m.owners[index(rank_)], at, slot_);
    if (m.wire != DType::f32) encode_addends(stream, m, at);
    NcclGroup group;
    for (int peer = 0; peer < size_; ++peer) {
        if (peer == rank_) continue;
        const Interval out = intersect(held, window(m.owners[index(peer)], at, slot_)), in = intersect(m.sources[index(peer)], mine);
        const void* from = m.wire == DType::f32 ? static_cast<const void*>(addends(m, rank_, out.begin)) : outgoing(peer);
        if (!out.empty())
            SHERD_NCCL(ncclSend(from, static_cast<std::size_t>(out.size()), nccl_type(m.wire), peer, nccl.get(), stream.get()));
        if (!in.empty())
            SHERD_NCCL(ncclRecv(incoming(peer), static_cast<std::size_t>(in.size()), nccl_type(m.wire), peer, nccl.get(), stream.get()));
    }
    group.end();
    nccl.settle(what);
    if (!mine.empty()) add_up(stream, m, mine);
}

/// Bit for bit the sum of wire.hpp: 0, then the addends in rank order. The 0 is written only where the first addend leaves a part of the
/// window out.
void NcclExchange::add_up(cuda::CudaStream& stream, const Redistribution& m, Interval mine) {
    const Interval own = intersect(m.sources[index(rank_)], mine);
    float* const to = static_cast<float*>(m.to) + (mine.begin - m.owners[index(rank_)].begin);
    const float* kept = own.empty() ? nullptr : addends(m, rank_, own.begin);
    if (!own.empty() && overlap(floats(kept, own), floats(to, mine))) {
        backend_.copy(stream, incoming(rank_), kept, bytes_of(own, DType::f32));
        kept = incoming(rank_);
    }
    bool begun = false;
    for (int r = 0; r < size_; ++r) {
        const Interval part = intersect(m.sources[index(r)], mine);
        if (part.empty()) continue;
        const bool writes_all = !begun && part == mine;
        if (!begun && !writes_all) backend_.zero(stream, to, bytes_of(mine, DType::f32));
        begun = true;
        const Tensor addend = r == rank_ ? Tensor{const_cast<float*>(kept), DType::f32, 1, part.size()}  // which add() reads only
                                         : Tensor{incoming(r), m.wire, 1, part.size()};
        backend_.add(stream, {to + (part.begin - mine.begin), DType::f32, 1, part.size()}, addend, !writes_all);
    }
    if (!begun) backend_.zero(stream, to, bytes_of(mine, DType::f32));
}

}  // namespace sherd::detail
