#include "sherd/sharding/shard_buffer.hpp"

namespace sherd {

std::uint64_t ShardBuffer::bytes(const std::vector<Interval>& held, DType dtype) noexcept {
    std::int64_t n = 0;
    for (const Interval& i : held) n += i.size();
    return static_cast<std::uint64_t>(n) * size_of(dtype);
}

ShardBuffer::ShardBuffer(Backend& backend, Stream& stream, std::vector<Interval> held, DType dtype, const std::string& purpose)
    : held_(std::move(held)), dtype_(dtype) {
    std::int64_t n = 0;
    for (const Interval& i : held_) {
        starts_.push_back(n);
        n += i.size();
    }
    // a rank that owns nothing still has a block, so that exists() tells what was made
    memory_ = DeviceMemory(backend, std::max<std::uint64_t>(bytes(held_, dtype_), 256), purpose);
    backend.zero(stream, memory_.data(), memory_.bytes());
}

void* ShardBuffer::at(int unit, std::int64_t element) const {
    const auto u = static_cast<std::size_t>(unit);
    const std::int64_t index = starts_[u] + element - held_[u].begin;
    return static_cast<unsigned char*>(memory_.data()) + static_cast<std::uint64_t>(index) * size_of(dtype_);
}

bool nested(const std::vector<Interval>& inner, const std::vector<Interval>& outer) noexcept {
    for (std::size_t u = 0; u < inner.size(); ++u)
        if (!inner[u].empty() && (inner[u].begin < outer[u].begin || inner[u].end > outer[u].end)) return false;
    return true;
}

}  // namespace sherd
