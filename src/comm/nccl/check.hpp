#pragma once
/// Checked NCCL calls: SHERD_NCCL(ncclSend(...)) throws DeviceError naming call, file, line, rank, host and NCCL's own words.
/// ncclInProgress is no failure: communicators do not block (handle.hpp).
#include <nccl.h>
#include <string>

namespace sherd::detail {

void check_nccl(ncclResult_t code, const char* call, const char* file, int line);

/// "unhandled system error: Call to connect returned Connection refused"
std::string words_of(ncclResult_t code, ncclComm_t communicator = nullptr);

}  // namespace sherd::detail

#define SHERD_NCCL(call) ::sherd::detail::check_nccl((call), #call, __FILE__, __LINE__)
