#include "data/dataset_reader.hpp"

#include "sherd/io/weight_source.hpp"
#include "sherd/runtime/error.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

namespace sherd::detail {

ReadOnlyFile::ReadOnlyFile(const std::filesystem::path& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) throw InputError("{}: cannot be opened for reading: {}", path.string(), std::strerror(errno));
}
ReadOnlyFile::~ReadOnlyFile() {
    if (fd_ >= 0) ::close(fd_);
}

const std::vector<std::byte>& ChunkCache::get(const Key& key, const std::function<std::vector<std::byte>()>& load) {
    if (const auto found = index_.find(key); found != index_.end()) {
        entries_.splice(entries_.begin(), entries_, found->second);
        return entries_.front().second;
    }
    entries_.emplace_front(key, load());
    index_[key] = entries_.begin();
    held_ += entries_.front().second.size();
    while (held_ > budget_ && entries_.size() > 1) {
        held_ -= entries_.back().second.size();
        index_.erase(entries_.back().first);
        entries_.pop_back();
    }
    return entries_.front().second;
}

DatasetReader::DatasetReader(const io::HdfFile& file, const ReadOnlyFile& raw, ChunkCache& cache, std::string dataset)
    : file_(file), raw_(raw), cache_(cache), stream_(cache.add_stream()), dataset_(std::move(dataset)), info_(file.info(dataset_)) {
    if (info_.shape.size() != 1) throw InputError("{}: its shape is {}, expected one dimension", where(), to_string(info_.shape));
}

std::string DatasetReader::where() const {
    return fmt::format("{}: dataset '{}'", file_.path().string(), dataset_);
}

void DatasetReader::read(std::int64_t begin, std::int64_t count, void* out) const {
    if (begin < 0 || count < 0 || count > size() - begin)
        throw InputError("{}: elements {} to {} were asked for, it has {}", where(), begin, begin + count, size());
    if (count == 0) return;
    if (info_.offset) {
        read_raw(begin, count, static_cast<std::byte*>(out));
    } else if (info_.filtered && info_.chunk_bytes > 0) {
        read_chunks(begin, count, static_cast<std::byte*>(out));
    } else {
        file_.read(dataset_, begin, count, out);
    }
}

void DatasetReader::read_raw(std::int64_t begin, std::int64_t count, std::byte* out) const {
    const std::size_t element = size_of(info_.dtype);
    std::size_t left = static_cast<std::size_t>(count) * element;
    auto at = static_cast<off_t>(*info_.offset + static_cast<std::uint64_t>(begin) * element);
    while (left > 0) {
        const ssize_t n = ::pread(raw_.fd(), out, left, at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) throw InputError("{}: cannot read {} bytes at byte {} of the file: {}", where(), left, at, std::strerror(errno));
        if (n == 0) throw InputError("{}: the file ends at byte {}, {} more were expected: it is truncated", where(), at, left);
        out += n;
        at += n;
        left -= static_cast<std::size_t>(n);
    }
}

/// HDF5 moves at most 16 MiB a call: a larger chunk takes several, and would be decompressed in each if HDF5 did not hold it meanwhile.
std::vector<std::byte> DatasetReader::load_chunk(std::int64_t first, std::int64_t count) const {
    constexpr std::uint64_t one_call = std::uint64_t{16} << 20;
    std::vector<std::byte> loaded(static_cast<std::size_t>(count) * size_of(info_.dtype));
    const bool large = info_.chunk_bytes > one_call;
    if (large) io::set_chunk_cache_bytes(info_.chunk_bytes);
    file_.read(dataset_, first, count, loaded.data());
    if (large) {
        io::set_chunk_cache_bytes(0);
        file_.info(dataset_);  // opens the dataset anew with a small cache, which frees HDF5's copy
    }
    return loaded;
}

void DatasetReader::read_chunks(std::int64_t begin, std::int64_t count, std::byte* out) const {
    const std::size_t element = size_of(info_.dtype);
    const auto chunk = static_cast<std::int64_t>(info_.chunk_bytes / element);
    while (count > 0) {
        const std::int64_t index = begin / chunk, first = index * chunk, held = std::min(chunk, size() - first);
        const std::vector<std::byte>& bytes = cache_.get({stream_, index}, [&] { return load_chunk(first, held); });
        const std::int64_t part = std::min(count, first + held - begin);
        const std::size_t part_bytes = static_cast<std::size_t>(part) * element;
        std::memcpy(out, bytes.data() + static_cast<std::size_t>(begin - first) * element, part_bytes);
        out += part_bytes;
        begin += part;
        count -= part;
    }
}

}  // namespace sherd::detail
