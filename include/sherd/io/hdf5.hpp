#pragma once
/// HDF5 behind RAII. Every call is checked and runs under one mutex (Debian's library is not thread-safe); errors are InputError naming
/// file and dataset, never a stack dump on stderr. At most 16 MiB move per call, so that the mutex is never held for long.
#include "sherd/tensor/dtype.hpp"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace sherd::io {

namespace detail {
struct HdfHandle;  // a hid_t with its close function
}

/// Shape and type of a dataset, and where its bytes lie if they lie in one piece.
struct DatasetInfo {
    std::vector<std::int64_t> shape;
    DType dtype;
    std::uint64_t chunk_bytes = 0;        ///< 0: contiguous or compact
    bool filtered = false;                ///< compressed, shuffled, or otherwise filtered
    std::optional<std::uint64_t> offset;  ///< byte offset in the file for pread; only contiguous, allocated, unfiltered, little endian
};

/// An open HDF5 file. Opened for reading, files of other writers do not disturb (locking is off for readers).
class HdfFile {
  public:
    /// Throws InputError: does not exist, is no HDF5 file, is truncated.
    static HdfFile open(const std::filesystem::path& path);
    /// Creates the file; fails if it exists. Throws InputError (also for a full disk, here and in every write and in close()).
    static HdfFile create(const std::filesystem::path& path);
    HdfFile(HdfFile&&) noexcept;
    HdfFile& operator=(HdfFile&&) noexcept;
    ~HdfFile();

    const std::filesystem::path& path() const noexcept { return path_; }

    bool exists(const std::string& name) const;  ///< group or dataset at that path
    /// Names of a group's members in alphabetical order; recursive: full paths of the datasets below it, relative to it.
    std::vector<std::string> members(const std::string& group, bool recursive = false) const;
    /// Throws InputError if absent or of a type that DType does not know (bfloat16 is recognized by its fields 15/7/8/0/7, size 2, bias
    /// 127).
    DatasetInfo info(const std::string& dataset) const;

    /// Reads elements [begin, begin+count) of the flattened dataset, converted by nothing: `out` holds elements of its DType in native
    /// order.
    void read(const std::string& dataset, std::int64_t begin, std::int64_t count, void* out) const;
    /// Creates a contiguous dataset; parents are created. bf16 becomes the custom float described above.
    void create_dataset(const std::string& dataset, const std::vector<std::int64_t>& shape, DType dtype);
    /// Writes elements [begin, begin+count) of the flattened dataset.
    void write(const std::string& dataset, std::int64_t begin, std::int64_t count, const void* data);

    /// Attributes of the root group or of an object. Integers of any width and sign; strings fixed or variable.
    std::optional<std::int64_t> integer_attribute(const std::string& object, const std::string& name) const;
    std::optional<std::string> string_attribute(const std::string& object, const std::string& name) const;
    void set_attribute(const std::string& object, const std::string& name, std::int64_t value);
    void set_attribute(const std::string& object, const std::string& name, const std::string& value);  ///< variable-length UTF-8

    /// A piece of a virtual dataset: elements [begin, begin+count) of the flattened whole come from the 1-d dataset `source` of file
    /// `file` (a relative name beside this file), starting at its element 0.
    struct Piece {
        std::int64_t begin, count;
        std::string file, source;
    };
    /// Creates a virtual dataset with fill value NaN (float types). Flat pieces become up to 2*rank-1 hyperslabs each.
    void create_virtual(const std::string& dataset, const std::vector<std::int64_t>& shape, DType dtype, const std::vector<Piece>& pieces);

    void create_group(const std::string& group);
    /// Another name for a dataset of this file (a hard link): read under either name, it is the same bytes, stored once.
    void link(const std::string& name, const std::string& dataset);
    /// Flushes and closes; errors (a full disk) are thrown here, the destructor only swallows them.
    void close();

  private:
    HdfFile(std::filesystem::path path, std::unique_ptr<detail::HdfHandle> file);
    std::filesystem::path path_;
    std::unique_ptr<detail::HdfHandle> file_;
};

/// Opens `path` and checks attributes `sherd.kind` and `sherd.version` (1). Throws InputError naming what was found and expected.
HdfFile open_kind(const std::filesystem::path& path, const std::string& kind);

/// Chunk cache for datasets opened from now on in `open`ed files grows to hold a chunk of this many bytes (0: HDF5's default of 1 MiB).
void set_chunk_cache_bytes(std::uint64_t bytes);

}  // namespace sherd::io
