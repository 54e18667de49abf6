#include "io/system_calls.hpp"

#include "sherd/runtime/error.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace sherd::io {

namespace {
int real_open(const char* path, int flags, mode_t mode) {
    return ::open(path, flags, mode);
}
int real_exchange(const char* first, const char* second) {
    return ::renameat2(AT_FDCWD, first, AT_FDCWD, second, RENAME_EXCHANGE);
}
}  // namespace

SystemCalls& system_calls() noexcept {
    static SystemCalls calls{real_open, ::write, ::fsync, ::rename, real_exchange};
    return calls;
}

std::string system_reason() {
    const int code = errno;
    return fmt::format("{} (errno {})", std::strerror(code), code);
}

Descriptor::~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
}

Descriptor open_descriptor(const std::filesystem::path& path, int flags, const char* action) {
    int fd = -1;
    do {
        fd = system_calls().open(path.c_str(), flags | O_CLOEXEC, 0666);  // the umask narrows 0666
    } while (fd < 0 && errno == EINTR);
    if (fd < 0) throw InputError("cannot {} '{}': {}", action, path.string(), system_reason());
    return Descriptor(fd);
}

void write_fully(int fd, const void* data, std::uint64_t bytes, const std::filesystem::path& path) {
    constexpr std::uint64_t largest = 1u << 30;  // Linux moves at most 2 GiB a call
    const char* at = static_cast<const char*>(data);
    while (bytes > 0) {
        const ssize_t written = system_calls().write(fd, at, static_cast<std::size_t>(std::min(bytes, largest)));
        if (written < 0 && errno == EINTR) continue;
        if (written == 0) errno = ENOSPC;
        if (written <= 0)
            throw InputError("cannot write '{}': {}; free some space or choose another place", path.string(), system_reason());
        at += written;
        bytes -= static_cast<std::uint64_t>(written);
    }
}

void begin_writeback(int fd, std::uint64_t before, std::uint64_t now) noexcept {
    if (before / writeback_bytes == now / writeback_bytes) return;
    const int kept = errno;
    ::sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);  // to the end of the file
    errno = kept;
}

void sync_descriptor(int fd, const std::filesystem::path& path) {
    if (system_calls().fsync(fd) == 0) return;
    // a few file systems refuse to sync a directory; there is nothing more to be done for durability then
    if (errno == EINVAL) return;
    throw InputError("cannot bring '{}' to disk: fsync: {}", path.string(), system_reason());
}

}  // namespace sherd::io
