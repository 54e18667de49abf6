#pragma once
/// Which rows of a stream of documents see which: tiles are cut from the stream, whatever documents their rows belong to.
#include "attention.hpp"
#include "device.cuh"

#include <climits>

namespace sherd::cuda {

/// Rows that belong to documents.
__device__ inline int used_rows(const std::int32_t* offsets, const AttentionSizes& s) {
    return s.documents > 0 ? offsets[s.documents] : 0;
}

/// The document of a used row: the last one that begins at or before it.
__device__ inline int document_of(const std::int32_t* offsets, const AttentionSizes& s, int row) {
    int low = 0, high = s.documents;  // offsets[low] <= row < offsets[high]
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (offsets[middle] <= row) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/// First key that a query sees. It never falls from one row to the next; a row of no document sees none: INT_MAX.
__device__ inline int first_key(const std::int32_t* offsets, const AttentionSizes& s, int query, int used) {
    if (query >= used) return INT_MAX;
    return max(offsets[document_of(offsets, s, query)], query - s.window + 1);
}

/// Last query that sees a key. It never falls from one used row to the next; a row of no document is seen by none: -1.
__device__ inline int last_query(const std::int32_t* offsets, const AttentionSizes& s, int key, int used) {
    if (key >= used) return -1;
    return min(offsets[document_of(offsets, s, key) + 1] - 1, key + s.window - 1);
}

}  // namespace sherd::cuda
