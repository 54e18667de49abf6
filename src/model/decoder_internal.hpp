#pragma once
#include <cstdint>

namespace sherd {

/// Rows of logits that exist at a time.
std::int64_t logits_chunk_rows(std::int64_t vocabulary) noexcept;

/// Positions of a block's parameters in its unit (parameters.cpp).
enum BlockParameter { norm1, query, key, value, output, norm2, gate, up, down };

}  // namespace sherd
