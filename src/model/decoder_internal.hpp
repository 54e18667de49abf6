#pragma once
#include <cstdint>

namespace sherd {

class Backend;

/// Rows of logits that exist at a time.
std::int64_t logits_chunk_rows(std::int64_t vocabulary, const Backend& backend) noexcept;

}  // namespace sherd
