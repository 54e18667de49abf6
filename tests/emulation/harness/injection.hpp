#pragma once
/// Makes any call of the stand-ins fail, and counts them all.
///
/// In a test: fail_call("cudaMalloc", 2). From outside, for whole programs: EMU_FAIL=NAME:N[@RANK], the rank as mpirun gives it;
/// EMU_CALLS=FILE makes each process write FILE.RANK when it ends, a line `NAME COUNT` a function. NAME is a function of the CUDA runtime,
/// cuBLASLt or NCCL, or one of
///   useful wait            a cudaStreamWaitEvent that orders what was not ordered before: "failing" leaves it out
///   kernel                 the launch of a kernel: cudaGetLastError tells
///   copy to host           a copy from device to host memory, by whichever call
///   kernel out of memory   the same with cudaErrorMemoryAllocation, as where its code cannot be loaded
///   cublasLtMatmul out of memory   a product with CUBLAS_STATUS_ALLOC_FAILED
///   asynchronous error     an NCCL communicator breaks: ncclCommGetAsyncError tells, what is under way never ends
#include <map>
#include <string>

namespace emu {

/// Counts the call; true where it is the one that is to fail. Throws Fault where it is made from within a host function of a stream.
bool call_fails(const char* name);

/// The value of an environment variable, nullptr where it is not set. A list, as "90,75", gives each rank its own entry, and ranks beyond
/// it the last.
const char* of_own_rank(const char* variable);

/// The nth call of that name from now on fails, counted from 1; n = 0: none. Only one at a time.
void fail_call(const std::string& name, int n);

/// How often each function was called since the process began or forget_calls().
std::map<std::string, long> calls();
void forget_calls();

/// A rank of the process has died: every NCCL communicator that lives hears that the other end of a connection is closed.
void break_communicators();

/// While one lives, its thread stands in a host function of a stream, which must not call CUDA.
class InHostFunction {
  public:
    InHostFunction();
    ~InHostFunction();
    InHostFunction(const InHostFunction&) = delete;
};

}  // namespace emu
