#pragma once
/// Which of the usual collectives a redistribution is: tables of intervals in, one word out. NCCL has a call for each.
#include "sherd/comm/communicator.hpp"

namespace sherd::detail {

enum class MovementKind {
    all_gather,      ///< equal consecutive parts, everyone wants all
    broadcasts,      ///< unequal parts that together are everything, everyone wants all: one broadcast a part
    messages,        ///< any other copy
    all_reduce,      ///< fp32, everyone holds all and wants all
    reduce_scatter,  ///< fp32, everyone holds all, equal consecutive owners
    reduces,         ///< fp32, everyone holds all, other owners: one reduction an owner
    exchange         ///< any other sum: messages, and additions in rank order
};

MovementKind classify(const Redistribution& movement);

}  // namespace sherd::detail
