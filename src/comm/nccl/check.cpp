#include "comm/nccl/check.hpp"

#include "sherd/runtime/error.hpp"

#include <string_view>

namespace sherd::detail {

std::string words_of(ncclResult_t code, ncclComm_t communicator) {
    std::string words = ncclGetErrorString(code);
    const char* last = ncclGetLastError(communicator);
    if (last != nullptr && *last != '\0') words += std::string(": ") + last;
    return words;
}

void check_nccl(ncclResult_t code, const char* call, const char* file, int line) {
    if (code == ncclSuccess || code == ncclInProgress) return;
    const std::string_view whole(call);
    throw DeviceError(call_failure(std::string(whole.substr(0, whole.find('('))).c_str(), file, line,
                                   words_of(code) + "; NCCL_DEBUG = INFO in [nccl] tells more"));
}

}  // namespace sherd::detail
