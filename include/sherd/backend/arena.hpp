#pragma once
/// One block of memory handed out in named parts. Run once without memory it only measures, so that sizes come from one place.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace sherd {

class Arena {
  public:
    static constexpr std::uint64_t alignment = 256;  ///< bytes

    /// base nullptr: measure only; every part is then nullptr.
    explicit Arena(void* base = nullptr) noexcept : base_(static_cast<unsigned char*>(base)) {}

    template <class T = void>
    T* take(std::uint64_t bytes, std::string name) {
        unsigned char* part = base_ == nullptr ? nullptr : base_ + used_;
        const std::uint64_t rounded = (bytes + alignment - 1) / alignment * alignment;
        used_ += rounded;
        parts_.emplace_back(std::move(name), rounded);
        return static_cast<T*>(static_cast<void*>(part));
    }
    std::uint64_t bytes() const noexcept { return used_; }
    const std::vector<std::pair<std::string, std::uint64_t>>& parts() const noexcept { return parts_; }

  private:
    unsigned char* base_;
    std::uint64_t used_ = 0;
    std::vector<std::pair<std::string, std::uint64_t>> parts_;
};

}  // namespace sherd
