#pragma once
/// The few system calls on which durability rests, behind one table, so that tests can make a chosen call fail, and a descriptor that
/// closes itself.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <sys/types.h>
#include <utility>

namespace sherd::io {

/// What files.cpp, atomic_target.cpp and safetensors.cpp call instead of the system. Each has the meaning and errno of its namesake.
struct SystemCalls {
    int (*open)(const char* path, int flags, mode_t mode);
    ssize_t (*write)(int fd, const void* data, std::size_t bytes);
    int (*fsync)(int fd);
    int (*rename)(const char* from, const char* to);
    /// Swaps two existing paths in one step (renameat2 with RENAME_EXCHANGE); -1 with EINVAL or ENOSYS where the file system cannot.
    int (*exchange)(const char* first, const char* second);
};

/// The table in force. A test may replace entries and must put them back.
SystemCalls& system_calls() noexcept;

/// "strerror (errno 28)" of the current errno.
std::string system_reason();

/// A file descriptor that is closed when it goes.
class Descriptor {
  public:
    explicit Descriptor(int fd = -1) noexcept : fd_(fd) {}
    ~Descriptor();
    Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Descriptor& operator=(Descriptor&&) = delete;
    int get() const noexcept { return fd_; }
    int release() noexcept { return std::exchange(fd_, -1); }

  private:
    int fd_;
};

/// open(2) with O_CLOEXEC, repeated after a signal. Throws InputError "cannot ACTION 'PATH': reason".
Descriptor open_descriptor(const std::filesystem::path& path, int flags, const char* action);
/// write(2) until everything is written. Throws InputError naming `path` and the reason (a full disk).
void write_fully(int fd, const void* data, std::uint64_t bytes, const std::filesystem::path& path);
/// Lets the disk begin with what was written, where another `writeback_bytes` came together: `before` were written when that was last
/// asked, `now` are. An fsync at the end then waits for little. A hint: file systems that cannot do it are left alone.
void begin_writeback(int fd, std::uint64_t before, std::uint64_t now) noexcept;
inline constexpr std::uint64_t writeback_bytes = 32u << 20;
/// fsync(2). Throws InputError.
void sync_descriptor(int fd, const std::filesystem::path& path);

}  // namespace sherd::io
