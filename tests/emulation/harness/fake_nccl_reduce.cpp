/// Sums of the stand-in of NCCL, in the order of a ring that begins at some rank: NCCL promises no order either.
#include "execution.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <nccl.h>
#include <vector>

namespace emu::nccl {

namespace {

template <class T, class Wide>
void fold(void* to, const std::vector<const char*>& from, ncclRedOp_t op, std::size_t count, int first) {
    const std::size_t ranks = from.size();
    for (std::size_t i = 0; i < count; ++i) {
        Wide total{};
        for (std::size_t r = 0; r < ranks; ++r) {
            T x;
            std::memcpy(static_cast<void*>(&x), from[(r + static_cast<std::size_t>(first)) % ranks] + i * sizeof(T), sizeof(T));
            const Wide v = static_cast<Wide>(x);
            total = r == 0 ? v : op == ncclMax ? std::max(total, v) : op == ncclMin ? std::min(total, v) : total + v;
        }
        if (op == ncclAvg) total /= static_cast<Wide>(static_cast<int>(ranks));
        const T rounded = static_cast<T>(total);
        std::memcpy(static_cast<char*>(to) + i * sizeof(T), &rounded, sizeof(T));
    }
}

}  // namespace

void reduce(void* to, const std::vector<const char*>& from, ncclDataType_t type, ncclRedOp_t operation, std::size_t count, int first) {
    if (operation == ncclProd) throw Fault("the stand-in of NCCL knows no products");
    switch (type) {
        case ncclFloat32:
            return fold<float, float>(to, from, operation, count, first);
        case ncclFloat64:
            return fold<double, double>(to, from, operation, count, first);
        case ncclFloat16:
            return fold<__half, float>(to, from, operation, count, first);
        case ncclBfloat16:
            return fold<__nv_bfloat16, float>(to, from, operation, count, first);
        case ncclInt32:
            return fold<std::int32_t, std::int32_t>(to, from, operation, count, first);
        case ncclInt64:
            return fold<std::int64_t, std::int64_t>(to, from, operation, count, first);
        case ncclUint8:
            return fold<std::uint8_t, std::uint8_t>(to, from, operation, count, first);
        default:
            throw Fault("the stand-in of NCCL sums no data type " + std::to_string(type));
    }
}

}  // namespace emu::nccl
