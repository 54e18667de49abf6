#include "backend/cuda/trace.hpp"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#endif

namespace sherd::cuda {

void trace_operation([[maybe_unused]] const char* operation) noexcept {
#ifdef NVTX_VERSION
    thread_local bool open = false;
    if (open) nvtxRangePop();
    nvtxRangePushA(operation);
    open = true;
#endif
}

}  // namespace sherd::cuda
