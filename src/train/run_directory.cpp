#include "train/run_directory.hpp"

#include "sherd/runtime/error.hpp"

#include <chrono>
#include <system_error>
#include <thread>
#include <unistd.h>

namespace sherd {

namespace fs = std::filesystem;

namespace {

constexpr double lock_seconds = 30;
constexpr auto patience = std::chrono::seconds(10);  // network file systems show new files late

/// Fails on a rank for which this path is another directory: another disk, or another working directory. Otherwise it would only turn out
/// when the first checkpoint is written.
void check_shared(const fs::path& path, Communicator& host) {
    if (host.size() == 1) return;
    // a name that no client has asked for yet, so that no cache remembers its absence
    const fs::path probe = path / broadcast(host, fmt::format(".probe-{}-{}", host_name(), ::getpid()));
    std::error_code error;
    collectively(host, [&] {
        if (host.rank() == 0) io::write_text_atomically(probe, "");
    });
    try {
        collectively(host, [&] {
            const auto end = std::chrono::steady_clock::now() + patience;
            while (!fs::exists(probe, error)) {
                if (std::chrono::steady_clock::now() > end)
                    throw EnvironmentError(
                        "run.directory '{}' is not the directory that rank 0 sees: every rank writes its part of a checkpoint into it, so "
                        "that it must lie on a file system that all nodes share; a relative path follows each rank's working directory",
                        path.string());
                std::this_thread::sleep_for(std::chrono::milliseconds(50));
            }
        });
    } catch (...) {
        if (host.rank() == 0) fs::remove(probe, error);
        throw;
    }
    if (host.rank() == 0) fs::remove(probe, error);
}

}  // namespace

RunDirectory::RunDirectory(const fs::path& path, Communicator& host) {
    collectively(host, [&] {
        if (host.rank() != 0) return;
        io::make_directories(path);
        lock_.emplace(path / ".lock", lock_seconds);
    });
    check_shared(path, host);
}

}  // namespace sherd
