#include "sherd/io/files.hpp"

#include "io/system_calls.hpp"

#include "sherd/runtime/error.hpp"

#include <cerrno>
#include <fcntl.h>
#include <system_error>
#include <unistd.h>

namespace sherd::io {

namespace fs = std::filesystem;

namespace {
fs::path directory_of(const fs::path& path) {
    return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

fs::path temporary_beside(const fs::path& path) {
    return directory_of(path) / fmt::format(".{}.tmp-{}", path.filename().string(), ::getpid());
}
}  // namespace

std::string read_text(const fs::path& path) {
    const Descriptor file = open_descriptor(path, O_RDONLY, "read");
    std::string text;
    char buffer[1 << 16];
    for (;;) {
        const ssize_t n = ::read(file.get(), buffer, sizeof buffer);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) throw InputError("cannot read '{}': {}", path.string(), system_reason());
        if (n == 0) return text;
        text.append(buffer, static_cast<std::size_t>(n));
    }
}

void write_text_atomically(const fs::path& path, std::string_view text) {
    const fs::path temporary = temporary_beside(path);
    try {
        {
            const Descriptor file = open_descriptor(temporary, O_WRONLY | O_CREAT | O_TRUNC, "create");
            write_fully(file.get(), text.data(), text.size(), path);
            sync_descriptor(file.get(), path);
        }
        rename_durably(temporary, path);
    } catch (...) {
        std::error_code ignored;
        fs::remove(temporary, ignored);
        throw;
    }
}

void sync_path(const fs::path& path) {
    const Descriptor file = open_descriptor(path, O_RDONLY, "open for fsync");
    sync_descriptor(file.get(), path);
}

void rename_durably(const fs::path& from, const fs::path& to) {
    if (system_calls().rename(from.c_str(), to.c_str()) != 0)
        throw InputError("cannot rename '{}' to '{}': {}", from.string(), to.string(), system_reason());
    sync_path(directory_of(to));
}

void replace_link(const fs::path& link, const fs::path& target) {
    const fs::path temporary = temporary_beside(link);
    std::error_code ignored;
    fs::remove(temporary, ignored);
    if (::symlink(target.c_str(), temporary.c_str()) != 0)
        throw InputError("cannot make a link '{}' to '{}': {}", temporary.string(), target.string(), system_reason());
    try {
        rename_durably(temporary, link);
    } catch (...) {
        fs::remove(temporary, ignored);
        throw;
    }
}

void make_directories(const fs::path& path) {
    std::error_code error;
    fs::create_directories(path, error);
    if (error) throw InputError("cannot make the directory '{}': {}", path.string(), error.message());
    if (!fs::is_directory(path, error))
        throw InputError("cannot make the directory '{}': a file of that name is in the way", path.string());
}

}  // namespace sherd::io
