#pragma once
/// Collectives of GPUs by NCCL, behind the same interface.
#include "sherd/comm/communicator.hpp"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace sherd {

/// "2.28.9" that this binary was compiled with, or "none (...)" saying how to get it: a line of `sherd --version`.
std::string nccl_build();
/// Whether this binary has NCCL.
bool built_with_nccl() noexcept;

struct NcclOptions {
    std::map<std::string, std::string> variables;  ///< NCCL_*: put into the environment before NCCL starts, and logged
    WaitLimits limits;                             ///< of collectives, and of NCCL's start
};

/// Collective over `host`, which serves agreements from then on. backend: a GPU of each rank's own. nodes: by rank.
/// Copies and whole fp32 sums are NCCL's own collectives: sums come in NCCL's order, the same in every run on the same ranks. Sums on
/// 16-bit wires, and those over ranks that hold parts only, are taken in rank order like everywhere else. A collective that fails or hangs
/// is aborted, and the wait for its stream throws. Throws DeviceError; UsageError where NCCL_COMM_BLOCKING is set; EnvironmentError (the
/// same on all ranks) where ranks have different versions.
std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator> host, Backend& backend, const std::vector<int>& nodes,
                                                     const NcclOptions& options);

}  // namespace sherd
