#pragma once
/// Events of a GPU: points in its streams. They carry no times.
#include "sherd/backend/backend.hpp"

#include <cuda_runtime.h>

namespace sherd::cuda {

class CudaEvent final : public Event {
  public:
    CudaEvent();
    ~CudaEvent() override;
    cudaEvent_t get() const noexcept { return event_; }

  private:
    cudaEvent_t event_ = nullptr;
};

}  // namespace sherd::cuda
