#pragma once

namespace sherd::cuda {

/// Tells profilers (nsys) which operation the calling thread enqueues from now until its next call: a range of NVTX, so that a trace names
/// products and copies as the program does. Costs a look at a pointer where nobody profiles.
void trace_operation(const char* operation) noexcept;

}  // namespace sherd::cuda
