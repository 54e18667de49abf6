#pragma once
/// Who holds how much of a device's memory, by purpose: for the message where there is no more.
#include "sherd/runtime/error.hpp"

#include <cstdint>
#include <map>
#include <string>

namespace sherd {

class MemoryAccount {
  public:
    void add(const void* block, std::uint64_t bytes, const std::string& purpose);
    void remove(const void* block) noexcept;
    /// All that is held now.
    std::uint64_t held() const noexcept { return held_; }
    /// "weights 12.0 GiB, activations 3.5 GiB, ...", largest first; "nothing" where that is so.
    std::string largest_first() const;

  private:
    struct Block {
        std::uint64_t bytes;
        std::string purpose;
    };
    std::map<const void*, Block> blocks_;
    std::uint64_t held_ = 0;
};

/// "12.3 GiB", "4.0 MiB", "512 bytes".
std::string readable_bytes(std::uint64_t bytes);

}  // namespace sherd
