#include "backend/memory_account.hpp"

#include <algorithm>
#include <vector>

namespace sherd {

void MemoryAccount::add(const void* block, std::uint64_t bytes, const std::string& purpose) {
    blocks_[block] = {bytes, purpose};
    held_ += bytes;
}

void MemoryAccount::remove(const void* block) noexcept {
    const auto found = blocks_.find(block);
    if (found == blocks_.end()) return;
    held_ -= found->second.bytes;
    blocks_.erase(found);
}

std::string MemoryAccount::largest_first() const {
    std::map<std::string, std::uint64_t> by_purpose;
    for (const auto& [address, block] : blocks_) by_purpose[block.purpose] += block.bytes;
    std::vector<std::pair<std::string, std::uint64_t>> sorted(by_purpose.begin(), by_purpose.end());
    std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
    std::string text;
    for (const auto& [purpose, bytes] : sorted) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", purpose, readable_bytes(bytes));
    return text.empty() ? "nothing" : text;
}

std::string readable_bytes(std::uint64_t bytes) {
    const auto exact = static_cast<double>(bytes);
    if (bytes >= std::uint64_t{1} << 30) return fmt::format("{:.1f} GiB", exact / (1 << 30));
    if (bytes >= std::uint64_t{1} << 20) return fmt::format("{:.1f} MiB", exact / (1 << 20));
    if (bytes >= 10240) return fmt::format("{:.1f} KiB", exact / 1024);
    return fmt::format("{} bytes", bytes);
}

}  // namespace sherd
