#include "io/hdf5_handle.hpp"

#include "sherd/runtime/error.hpp"

#include <cstdlib>

namespace sherd::io::detail {

namespace {
std::mutex& library_mutex() {
    static std::mutex mutex;
    return mutex;
}

void initialise_library() {
    // HDF5 reads the variable once, while it starts. Locks would make a notebook that holds an input open stop a job; our own files are
    // written under temporary names and need none.
    ::setenv("HDF5_USE_FILE_LOCKING", "FALSE", 1);
    // Our handles close everything; the library's own exit handler loops and complains where a disk was full.
    H5dont_atexit();
    H5open();
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

herr_t innermost(unsigned, const H5E_error2_t* entry, void* result) {
    if (entry->desc != nullptr && *entry->desc != '\0') *static_cast<std::string*>(result) = entry->desc;
    return 0;
}
}  // namespace

HdfLock::HdfLock() : lock_(library_mutex()) {
    static const bool initialised = (initialise_library(), true);
    static_cast<void>(initialised);
}

std::string hdf_reason() {
    std::string reason;
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, innermost, &reason);  // downward: from the call to the cause, which stays
    H5Eclear2(H5E_DEFAULT);
    constexpr std::string_view mark = "error message = '";
    if (const auto at = reason.find(mark); at != std::string::npos) {
        const std::string tail = reason.substr(at + mark.size());
        return tail.substr(0, tail.find('\''));
    }
    return reason.empty() ? "HDF5 gives no reason" : reason;
}

void fail(const std::filesystem::path& path, const std::string& object, const std::string& what) {
    const std::string reason = hdf_reason();
    throw InputError("'{}'{}: {}: {}", path.string(), object.empty() ? "" : ", '" + object + "'", what, reason);
}

Hid checked(hid_t id, Hid::Close closer, const std::filesystem::path& path, const std::string& object, const char* what) {
    if (id < 0) fail(path, object, what);
    return Hid(id, closer);
}

}  // namespace sherd::io::detail
