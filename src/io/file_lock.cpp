#include "io/system_calls.hpp"

#include "sherd/io/files.hpp"
#include "sherd/runtime/error.hpp"
#include "sherd/runtime/log.hpp"

#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <string>
#include <thread>
#include <unistd.h>

namespace sherd::io {

namespace {
struct flock whole_file(short type) {
    struct flock lock {};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    return lock;
}

/// Who holds the lock: what the holder wrote into the file (it knows its host), else what the kernel says.
std::string holder(int fd) {
    char text[256] = {};
    const ssize_t n = ::pread(fd, text, sizeof text - 1, 0);
    std::string written(text, n > 0 ? static_cast<std::size_t>(n) : 0);
    while (!written.empty() && written.back() == '\n') written.pop_back();
    struct flock lock = whole_file(F_WRLCK);
    const bool known = ::fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK && lock.l_pid > 0;
    if (!written.empty()) return written;
    return known ? fmt::format("process {}", lock.l_pid) : "another process";
}

void write_holder(int fd) {
    const std::string text = fmt::format("process {} on host {}\n", ::getpid(), host_name());
    // only a help for messages: a full disk must not stop a run here
    if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, text.data(), text.size(), 0) < 0) errno = 0;
}
}  // namespace

FileLock::FileLock(const std::filesystem::path& path, double seconds) {
    Descriptor file = open_descriptor(path, O_RDWR | O_CREAT, "open the lock file");
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    for (bool said = false;;) {
        struct flock lock = whole_file(F_WRLCK);
        if (::fcntl(file.get(), F_SETLK, &lock) == 0) break;
        if (errno == EINTR) continue;
        if (errno != EACCES && errno != EAGAIN) throw EnvironmentError("cannot lock '{}': {}", path.string(), system_reason());
        if (std::chrono::steady_clock::now() >= end)
            throw EnvironmentError(
                "'{}' is locked by {}, still after {:g} s; one job a directory: end that job or choose another directory", path.string(),
                holder(file.get()), seconds);
        if (!said) log::notice(fmt::format("'{}' is locked by {}; waiting up to {:g} s", path.string(), holder(file.get()), seconds));
        said = true;
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    write_holder(file.get());
    fd_ = file.release();
}

FileLock::~FileLock() {
    // the file stays: removing it would let two later jobs lock two different files of one name
    if (fd_ < 0) return;
    if (::ftruncate(fd_, 0) != 0) errno = 0;
    ::close(fd_);
}

}  // namespace sherd::io
