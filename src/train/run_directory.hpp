#pragma once
/// The directory of a run: held by one job, and the same one on every rank.
#include "sherd/comm/communicator.hpp"
#include "sherd/io/files.hpp"

#include <filesystem>
#include <optional>

namespace sherd {

/// Makes the directory and holds its lock, on rank 0, while the object lives.
class RunDirectory {
  public:
    /// Collective. Throws AgreedError: input where it cannot be made or written; environment where another job holds it still after 30 s,
    /// or where some rank does not see it.
    RunDirectory(const std::filesystem::path& path, Communicator& host);

  private:
    std::optional<io::FileLock> lock_;
};

}  // namespace sherd
