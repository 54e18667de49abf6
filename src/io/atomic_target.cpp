#include "io/system_calls.hpp"

#include "sherd/io/files.hpp"
#include "sherd/runtime/error.hpp"

#include <cerrno>
#include <charconv>
#include <csignal>
#include <fcntl.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

namespace sherd::io {

namespace fs = std::filesystem;

namespace {
/// Without a trailing slash, and through a link to what it points to, so that a rename replaces the thing and not the link.
fs::path clean(const fs::path& target) {
    std::error_code error;
    fs::path path = fs::absolute(target, error).lexically_normal();
    if (!path.has_filename()) path = path.parent_path();
    if (fs::is_symlink(path, error)) {
        const fs::path through = fs::canonical(path, error);
        if (!error) path = through;
    }
    if (path.filename().empty() || path.filename() == "..")
        throw InputError("'{}' cannot be replaced as a whole; name a path below it", target.string());
    return path;
}

void sync_tree(const fs::path& path) {
    if (fs::is_symlink(path)) return;
    if (fs::is_directory(path))
        for (const auto& entry : fs::directory_iterator(path)) sync_tree(entry.path());
    if (fs::is_directory(path) || fs::is_regular_file(path)) sync_path(path);
}
/// Removes what killed processes of this machine left of the same target: paths that begin with `prefix` and end with a process's number.
void remove_abandoned(const fs::path& parent, const std::string& prefix) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(parent, error)) {
        const std::string name = entry.path().filename().string();
        if (!name.starts_with(prefix)) continue;
        int process = 0;
        const char* const end = name.data() + name.size();
        const auto read = std::from_chars(name.data() + prefix.size(), end, process);
        if (read.ec != std::errc() || read.ptr != end || process <= 0) continue;
        if (process == ::getpid() || (::kill(process, 0) != 0 && errno == ESRCH)) fs::remove_all(entry.path(), error);
    }
}
}  // namespace

void replace_folder(const fs::path& fresh, const fs::path& target) {
    if (system_calls().exchange(fresh.c_str(), target.c_str()) == 0) return;
    if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
        throw InputError("cannot replace '{}' by '{}': {}", target.string(), fresh.string(), system_reason());
    // Some network file systems cannot exchange. Two renames then; a kill between them leaves the old folder under the name ".old-",
    // whole, and the new one under its temporary name, whole too.
    const fs::path old = target.parent_path() / fmt::format(".{}.old-{}", target.filename().string(), ::getpid());
    rename_durably(target, old);
    try {
        rename_durably(fresh, target);
    } catch (...) {
        rename_durably(old, target);
        throw;
    }
    rename_durably(old, fresh);
}

AtomicTarget::AtomicTarget(const fs::path& target, Kind kind) : target_(clean(target)) {
    const fs::path parent = target_.parent_path();
    std::error_code error;
    if (!fs::is_directory(parent, error))
        throw InputError("cannot write '{}': there is no directory '{}'", target.string(), parent.string());
    const fs::path temporary = parent / fmt::format(".{}.tmp-{}-{}", target_.filename().string(), host_name(), ::getpid());
    remove_abandoned(parent, fmt::format(".{}.tmp-{}-", target_.filename().string(), host_name()));
    if (kind == Kind::folder) {
        if (::mkdir(temporary.c_str(), 0777) != 0) throw InputError("cannot make a folder in '{}': {}", parent.string(), system_reason());
    } else if (::access(parent.c_str(), W_OK) != 0) {
        throw InputError("cannot write into the directory '{}': {}", parent.string(), system_reason());
    }
    temporary_ = temporary;
}

AtomicTarget::~AtomicTarget() {
    std::error_code ignored;
    if (!committed_) fs::remove_all(temporary_, ignored);
}

void AtomicTarget::commit() {
    std::error_code error;
    if (!fs::exists(temporary_, error)) throw InputError("cannot finish '{}': '{}' is gone", target_.string(), temporary_.string());
    try {
        sync_tree(temporary_);
        if (fs::is_directory(temporary_) && fs::is_directory(target_)) {
            replace_folder(temporary_, target_);
            sync_path(target_.parent_path());
            fs::remove_all(temporary_, error);  // the old content; what cannot be removed does no harm to the new
        } else {
            rename_durably(temporary_, target_);
        }
    } catch (const fs::filesystem_error& e) {
        throw InputError("cannot finish '{}': {}", target_.string(), e.what());
    }
    committed_ = true;
}

}  // namespace sherd::io
