#pragma once
/// What the user is warned of about a GPU.
#include "sherd/backend/devices.hpp"

#include <string>

namespace sherd {

/// Remembers what was told of one GPU.
class GpuAilments {
  public:
    /// "is held down by thermal and has 1 uncorrected memory error(s)": of these two what ails the GPU now and was never told; empty:
    /// nothing. At its power limit a GPU is at work.
    std::string news(const GpuHealth& health);

  private:
    bool throttling_told_ = false, errors_told_ = false;
};

}  // namespace sherd
