#pragma once
/// Private to io: hid_t handles that close themselves, the one mutex, and HDF5's error stack as a sentence.
#include "sherd/io/hdf5.hpp"

#include <hdf5.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace sherd::io::detail {

/// Debian's library is not thread-safe: whoever calls H5anything holds this lock. The first call initialises the library.
class HdfLock {
  public:
    HdfLock();

  private:
    std::unique_lock<std::mutex> lock_;
};

/// A hid_t with the function that closes it.
class Hid {
  public:
    using Close = herr_t (*)(hid_t);
    Hid() noexcept = default;
    Hid(hid_t id, Close closer) noexcept : id_(id), close_(closer) {}
    Hid(Hid&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(other.close_) {}
    Hid& operator=(Hid&& other) noexcept {
        std::swap(id_, other.id_);
        std::swap(close_, other.close_);
        return *this;
    }
    ~Hid() {
        if (id_ >= 0) close_(id_);
    }
    operator hid_t() const noexcept { return id_; }
    bool valid() const noexcept { return id_ >= 0; }
    /// Closes now and says whether that worked.
    bool close() noexcept { return id_ < 0 || close_(std::exchange(id_, H5I_INVALID_HID)) >= 0; }

  private:
    hid_t id_ = H5I_INVALID_HID;
    Close close_ = nullptr;
};

/// A dataset kept open between reads: a chunk that was decompressed once stays in its cache.
struct OpenDataset {
    Hid id, type;
    DatasetInfo info;
    bool swap_bytes = false;          ///< stored big endian
    std::uint64_t cache_setting = 0;  ///< set_chunk_cache_bytes when it was opened
};

struct HdfHandle {
    Hid file;
    std::uint64_t written = 0;  ///< bytes of datasets, since the file was created
    std::map<std::string, OpenDataset> datasets;
    ~HdfHandle() {
        const HdfLock lock;
        datasets.clear();
        file = Hid();
    }
};

/// The innermost entry of HDF5's error stack: the system's message if there is one, else HDF5's own words. Clears the stack.
std::string hdf_reason();

/// "'PATH', dataset 'NAME': WHAT: reason" as InputError.
[[noreturn]] void fail(const std::filesystem::path& path, const std::string& object, const std::string& what);

/// Wraps an id just made; throws by fail() where it is invalid.
Hid checked(hid_t id, Hid::Close closer, const std::filesystem::path& path, const std::string& object, const char* what);
inline void check(herr_t status, const std::filesystem::path& path, const std::string& object, const char* what) {
    if (status < 0) fail(path, object, what);
}

/// The little-endian file type of a DType (bf16: the custom float of 15/7/8/0/7). Throws InputError for fp8.
Hid file_type(DType type);
/// The DType of a file type and whether its bytes must be swapped. Throws InputError for types that DType does not know.
std::pair<DType, bool> recognize_type(hid_t type, const std::filesystem::path& path, const std::string& dataset);

/// A row-major box of an N-d array: as many entries as dimensions.
struct Box {
    std::vector<hsize_t> start, count;
    hsize_t elements() const noexcept;
};
/// Splits elements [begin, begin+count) of the flattened array into at most 2N-1 boxes, in flat order.
std::vector<Box> flat_boxes(const std::vector<std::int64_t>& shape, std::int64_t begin, std::int64_t count);

/// A dataspace of that shape; scalar for the empty one.
Hid make_space(const std::vector<std::int64_t>& shape, const std::filesystem::path& path, const std::string& object);
/// Throws InputError unless 0 <= begin, 0 <= count and begin + count <= elements of the shape.
void check_interval(const std::vector<std::int64_t>& shape, std::int64_t begin, std::int64_t count, const std::filesystem::path& path,
                    const std::string& dataset);
/// Creates a dataset with its parent groups from a creation property list.
void create_with(hid_t file, const std::filesystem::path& path, const std::string& dataset, hid_t type, hid_t space, hid_t creation);

}  // namespace sherd::io::detail
