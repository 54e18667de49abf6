#pragma once
/// One flat dataset of a token file, read by the way that suits its layout.
#include "sherd/io/hdf5.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace sherd::detail {

/// A file descriptor for reading; -1 when empty.
class ReadOnlyFile {
  public:
    /// Throws InputError naming the path and the system's reason.
    explicit ReadOnlyFile(const std::filesystem::path& path);
    ~ReadOnlyFile();
    ReadOnlyFile(const ReadOnlyFile&) = delete;
    ReadOnlyFile& operator=(const ReadOnlyFile&) = delete;
    int fd() const noexcept { return fd_; }

  private:
    int fd_;
};

/// Decompressed chunks of several datasets, the least recently used dropped first. HDF5's own cache is counted per dataset; this one bounds
/// a whole file.
class ChunkCache {
  public:
    using Key = std::pair<std::int64_t, std::int64_t>;  ///< stream, chunk
    explicit ChunkCache(std::uint64_t budget) : budget_(budget) {}
    /// Bytes of a chunk; `load` makes them where they are not held. Valid until the next call. The newest chunk is held whatever its size.
    const std::vector<std::byte>& get(const Key& key, const std::function<std::vector<std::byte>()>& load);
    /// A new number for a stream of chunks.
    std::int64_t add_stream() noexcept { return streams_++; }
    std::uint64_t budget() const noexcept { return budget_; }

  private:
    using Entry = std::pair<Key, std::vector<std::byte>>;
    std::uint64_t budget_, held_ = 0;
    std::int64_t streams_ = 0;
    std::list<Entry> entries_;  ///< most recently used first
    std::map<Key, std::list<Entry>::iterator> index_;
};

/// A one-dimensional dataset: pread where its bytes lie in one piece (own descriptor, no HDF5 lock), whole chunks through the cache where
/// it is compressed, HDF5 slices otherwise. The first
/// three arguments must outlive it.
class DatasetReader {
  public:
    /// Throws InputError: absent, of a type DType does not know, not one-dimensional.
    DatasetReader(const io::HdfFile& file, const ReadOnlyFile& raw, ChunkCache& cache, std::string dataset);
    DatasetReader(const DatasetReader&) = delete;
    DatasetReader& operator=(const DatasetReader&) = delete;

    const std::string& dataset() const noexcept { return dataset_; }
    DType dtype() const noexcept { return info_.dtype; }
    std::int64_t size() const noexcept { return info_.shape[0]; }
    std::uint64_t bytes() const noexcept { return static_cast<std::uint64_t>(size()) * size_of(info_.dtype); }
    /// Bytes of a compressed chunk; 0 where nothing has to be decompressed.
    std::uint64_t compressed_chunk_bytes() const noexcept { return info_.filtered ? info_.chunk_bytes : 0; }
    /// "PATH: dataset 'train/tokens'", how every message about it starts.
    std::string where() const;
    /// Elements [begin, begin + count) as stored. Throws InputError.
    void read(std::int64_t begin, std::int64_t count, void* out) const;

  private:
    void read_raw(std::int64_t begin, std::int64_t count, std::byte* out) const;
    std::vector<std::byte> load_chunk(std::int64_t first, std::int64_t count) const;
    void read_chunks(std::int64_t begin, std::int64_t count, std::byte* out) const;

    const io::HdfFile& file_;
    const ReadOnlyFile& raw_;
    ChunkCache& cache_;
    std::int64_t stream_;  ///< its number in the cache
    std::string dataset_;
    io::DatasetInfo info_;
};

}  // namespace sherd::detail
