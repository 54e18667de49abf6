#include "io/system_calls.hpp"
#include "io_scratch.hpp"

#include "sherd/io/files.hpp"

#include <cerrno>
#include <csignal>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace sherd;
using sherd::testing::expect_error;
using sherd::testing::Scratch;
using sherd::testing::write_bytes;
namespace fs = std::filesystem;

namespace {
/// Puts the table of system calls back.
class CallsGuard {
  public:
    CallsGuard() : saved_(io::system_calls()) {}
    ~CallsGuard() { io::system_calls() = saved_; }

  private:
    io::SystemCalls saved_;
};

std::size_t entries(const fs::path& folder) {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}
}  // namespace

TEST(Files, WritesAndReadsText) {
    const Scratch scratch;
    const std::string text = std::string("a\0b\n", 4) + std::string(200'000, 'x');
    io::write_text_atomically(scratch / "f", "old");
    io::write_text_atomically(scratch / "f", text);
    EXPECT_EQ(io::read_text(scratch / "f"), text);
    EXPECT_EQ(entries(scratch.path()), 1u);
    expect_error([&] { io::read_text(scratch / "none"); }, "none", "No such file");
    expect_error([&] { io::write_text_atomically(scratch / "no/f", "x"); }, "no/", "No such file");
}

TEST(Files, FollowTheUmask) {
    const Scratch scratch;
    const mode_t before = ::umask(027);
    io::write_text_atomically(scratch / "f", "x");
    {
        io::AtomicTarget target(scratch / "d", io::AtomicTarget::Kind::folder);
        target.commit();
    }
    ::umask(before);
    EXPECT_EQ(static_cast<int>(fs::status(scratch / "f").permissions()), 0640);
    EXPECT_EQ(static_cast<int>(fs::status(scratch / "d").permissions()), 0750);
}

TEST(Files, AFullDiskLeavesTheOldFileAndNoTemporary) {
    const Scratch scratch;
    io::write_text_atomically(scratch / "f", "old");
    const CallsGuard guard;
    io::system_calls().write = [](int, const void*, std::size_t) -> ssize_t { return errno = ENOSPC, -1; };
    expect_error([&] { io::write_text_atomically(scratch / "f", "new"); }, "/f'", "No space left on device");
    EXPECT_EQ(io::read_text(scratch / "f"), "old");
    EXPECT_EQ(entries(scratch.path()), 1u);
}

TEST(Files, FailingFsyncOrRenameIsReported) {
    const Scratch scratch;
    const CallsGuard guard;
    io::system_calls().fsync = [](int) { return errno = EIO, -1; };
    expect_error([&] { io::write_text_atomically(scratch / "f", "new"); }, "fsync", "Input/output error");
    EXPECT_FALSE(fs::exists(scratch / "f"));
    io::system_calls().fsync = ::fsync;
    io::system_calls().rename = [](const char*, const char*) { return errno = EACCES, -1; };
    expect_error([&] { io::write_text_atomically(scratch / "f", "new"); }, "rename", "Permission denied");
    EXPECT_EQ(entries(scratch.path()), 0u);
}

TEST(Files, ReplacesLinks) {
    const Scratch scratch;
    fs::create_directory(scratch / "a");
    fs::create_directory(scratch / "b");
    io::replace_link(scratch / "latest", "a");
    io::replace_link(scratch / "latest", "b");
    EXPECT_EQ(fs::read_symlink(scratch / "latest"), "b");
    fs::create_directory(scratch / "folder");
    expect_error([&] { io::replace_link(scratch / "folder", "a"); }, "folder");
}

TEST(Files, MakesDirectories) {
    const Scratch scratch;
    io::make_directories(scratch / "a/b/c");
    io::make_directories(scratch / "a/b/c");
    EXPECT_TRUE(fs::is_directory(scratch / "a/b/c"));
    write_bytes(scratch / "file", "x");
    expect_error([&] { io::make_directories(scratch / "file"); }, "Not a directory");
    expect_error([&] { io::make_directories(scratch / "file/below"); }, "file/below");
}

TEST(AtomicTarget, LeavesNothingWithoutCommit) {
    const Scratch scratch;
    write_bytes(scratch / "f", "old");
    {
        io::AtomicTarget target(scratch / "f", io::AtomicTarget::Kind::file);
        write_bytes(target.path(), "new");
        EXPECT_EQ(target.path().filename(), fmt::format(".f.tmp-{}-{}", host_name(), ::getpid()));
    }
    EXPECT_EQ(io::read_text(scratch / "f"), "old");
    EXPECT_EQ(entries(scratch.path()), 1u);
}

TEST(AtomicTarget, ReplacesFilesAndFolders) {
    const Scratch scratch;
    fs::create_directories(scratch / "d/deep");
    write_bytes(scratch / "d/deep/old", "old");
    for (const bool can_exchange : {true, false}) {
        const CallsGuard guard;
        if (!can_exchange) io::system_calls().exchange = [](const char*, const char*) { return errno = EINVAL, -1; };
        io::AtomicTarget target((scratch / "d").string() + "/", io::AtomicTarget::Kind::folder);
        write_bytes(target.path() / (can_exchange ? "first" : "second"), "new");
        target.commit();
        EXPECT_EQ(entries(scratch / "d"), 1u);
        EXPECT_TRUE(fs::exists(scratch / (can_exchange ? "d/first" : "d/second")));
        EXPECT_EQ(entries(scratch.path()), 1u);
    }
    expect_error([&] { io::AtomicTarget target(scratch / "none/d", io::AtomicTarget::Kind::folder); }, "there is no directory");
}

TEST(AtomicTarget, AFailedCommitLeavesTheOldFolder) {
    const Scratch scratch;
    fs::create_directory(scratch / "d");
    write_bytes(scratch / "d/old", "old");
    const CallsGuard guard;
    io::system_calls().exchange = [](const char*, const char*) { return errno = EIO, -1; };
    {
        io::AtomicTarget target(scratch / "d", io::AtomicTarget::Kind::folder);
        expect_error([&] { target.commit(); }, "cannot replace");
    }
    EXPECT_TRUE(fs::exists(scratch / "d/old"));
    EXPECT_EQ(entries(scratch.path()), 1u);
}

TEST(FileLock, ASecondProcessIsRefusedUntilTheFirstIsGone) {
    const Scratch scratch;
    int ready[2], done[2];
    ASSERT_EQ(::pipe(ready), 0);
    ASSERT_EQ(::pipe(done), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    char byte = 'x';
    if (child == 0) {  // holds the lock until told, and dies without a word
        const io::FileLock lock(scratch / "lock", 0);
        if (::write(ready[1], &byte, 1) != 1 || ::read(done[0], &byte, 1) != 1) ::_exit(1);
        ::kill(::getpid(), SIGKILL);
    }
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    expect_error<EnvironmentError>([&] { io::FileLock lock(scratch / "lock", 0.25); }, "lock", fmt::format("process {}", child),
                                   host_name());
    ASSERT_EQ(::write(done[1], &byte, 1), 1);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status));
    EXPECT_NO_THROW(io::FileLock(scratch / "lock", 0));
    for (const int fd : {ready[0], ready[1], done[0], done[1]}) ::close(fd);
}
