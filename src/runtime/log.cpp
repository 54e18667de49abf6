#include "sherd/runtime/log.hpp"

#include "sherd/runtime/error.hpp"

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <unistd.h>

namespace sherd::log {

namespace {
std::atomic<bool> progress_shown{false};
std::atomic<int> output_error{0};  // errno of the first line that stdout did not take

void write_all(int fd, const std::string& text) {
    for (std::size_t at = 0; at < text.size();) {
        const ssize_t n = ::write(fd, text.data() + at, text.size() - at);
        if (n <= 0) {  // nobody reads, or the disk is full: that must not end a training run
            if (fd == STDOUT_FILENO && output_error == 0) output_error = errno;
            return;
        }
        at += static_cast<std::size_t>(n);
    }
}

std::string after_progress(const std::string& text) {
    return progress_shown.exchange(false) ? "\r\033[K" + text : text;
}
}  // namespace

int lost_output() {
    return output_error;
}

void line(const std::string& text) {
    if (process_rank() == 0) write_all(STDOUT_FILENO, after_progress(text) + "\n");
}
void notice(const std::string& text) {
    if (process_rank() == 0) write_all(STDERR_FILENO, after_progress("sherd: notice: " + text) + "\n");
}
void warning(const std::string& text) {
    if (process_rank() == 0) write_all(STDERR_FILENO, after_progress("sherd: warning: " + text) + "\n");
}
void warning_of_any_rank(const std::string& text) {
    write_all(STDERR_FILENO, after_progress("sherd: warning: " + text) + "\n");
}
void error(const std::string& text) {
    write_all(STDERR_FILENO, after_progress("sherd: error: " + text) + "\n");
}

namespace {
/// OpenMPI gives every rank a pseudo terminal as stdout, wherever its own goes; what counts is where the launcher's goes.
bool launcher_writes_to_terminal() {
    if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr) return true;
    std::error_code error;
    const auto target = std::filesystem::read_symlink(fmt::format("/proc/{}/fd/1", ::getppid()), error).string();
    return !error && (target.starts_with("/dev/pts/") || target.starts_with("/dev/tty"));
}
}  // namespace

bool stdout_is_terminal() {
    static const bool terminal = ::isatty(STDOUT_FILENO) == 1 && launcher_writes_to_terminal();
    return terminal;
}

void progress(const std::string& text) {
    if (process_rank() != 0 || !stdout_is_terminal()) return;
    write_all(STDOUT_FILENO, "\r\033[K" + text);
    progress_shown = true;
}

}  // namespace sherd::log
