#pragma once
/// Files that appear whole or not at all, and their locks. The only place that renames or fsyncs.
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace sherd::io {

/// Whole text or bytes of a small file. Throws InputError naming the path and the system's reason.
std::string read_text(const std::filesystem::path& path);

/// Writes `text` to a temporary beside `path`, fsyncs, renames over `path`, fsyncs the directory. Throws InputError.
void write_text_atomically(const std::filesystem::path& path, std::string_view text);

/// fsync of a file or a directory. Throws InputError.
void sync_path(const std::filesystem::path& path);

/// rename(2) followed by an fsync of the parent directory. Throws InputError.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

/// Puts the folder `fresh` in the place of the folder `target`, whose old content ends up at `fresh`: in one step where the file system
/// can exchange, else by two renames. Throws InputError; the target then is as it was.
void replace_folder(const std::filesystem::path& fresh, const std::filesystem::path& target);

/// Replaces the symbolic link `link` by one to `target` (stored as given, relative) through a rename. Throws InputError.
void replace_link(const std::filesystem::path& link, const std::filesystem::path& target);

/// Creates a directory and its parents; existing ones are fine. Throws InputError naming what could not be made and why.
void make_directories(const std::filesystem::path& path);

/// A folder or file under construction: `path()` is a temporary beside the target (".NAME.tmp-PID"), removed on destruction unless
/// committed. commit() fsyncs everything under it and renames it over the target, which then is whole; an existing target is replaced.
class AtomicTarget {
  public:
    enum class Kind { file, folder };
    /// Throws InputError if the parent does not exist or cannot be written.
    AtomicTarget(const std::filesystem::path& target, Kind kind);
    ~AtomicTarget();
    AtomicTarget(const AtomicTarget&) = delete;
    AtomicTarget& operator=(const AtomicTarget&) = delete;
    const std::filesystem::path& path() const noexcept { return temporary_; }
    void commit();

  private:
    std::filesystem::path target_, temporary_;
    bool committed_ = false;
};

/// An exclusive fcntl lock on a file, held while the object lives.
class FileLock {
  public:
    /// Waits up to `seconds` for the lock; throws EnvironmentError naming the holder's process if it is still held then.
    FileLock(const std::filesystem::path& path, double seconds);
    ~FileLock();
    FileLock(const FileLock&) = delete;
    FileLock& operator=(const FileLock&) = delete;

  private:
    int fd_ = -1;
};

}  // namespace sherd::io
