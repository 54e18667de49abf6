#include "sherd/io/safetensors.hpp"

#include "io/system_calls.hpp"

#include "sherd/io/json.hpp"
#include "sherd/runtime/error.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <limits>
#include <numeric>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace sherd::io {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "the format is little endian and is copied as it is");

namespace {
constexpr std::uint64_t longest_header = 100'000'000;  ///< the limit of the reference implementation

void read_fully(int fd, void* out, std::uint64_t bytes, std::uint64_t offset, const std::string& what) {
    char* to = static_cast<char*>(out);
    while (bytes > 0) {
        const ssize_t n = ::pread(fd, to, static_cast<std::size_t>(std::min<std::uint64_t>(bytes, 1u << 30)), static_cast<off_t>(offset));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) throw InputError("{}: cannot read at byte {}: {}", what, offset, system_reason());
        if (n == 0) throw InputError("{}: the file ends at byte {}, {} more bytes were expected", what, offset, bytes);
        to += n;
        offset += static_cast<std::uint64_t>(n);
        bytes -= static_cast<std::uint64_t>(n);
    }
}

std::string where(const fs::path& path, const std::string& tensor) {
    return fmt::format("file '{}', tensor '{}'", path.string(), tensor);
}

/// A header's entry: what the tensor is, and its bytes [begin, end) after the header.
struct Entry {
    TensorInfo info;
    std::uint64_t begin = 0, end = 0;
};

std::uint64_t natural(const nlohmann::json& value, const std::string& what, const char* key) {
    if (value.is_number_unsigned()) return value.get<std::uint64_t>();
    if (value.is_number_integer() && value.get<std::int64_t>() >= 0) return static_cast<std::uint64_t>(value.get<std::int64_t>());
    throw InputError("{}: '{}' holds {}; expected an integer of 0 or more", what, key, value.dump());
}

const nlohmann::json& member(const nlohmann::json& object, const char* key, const std::string& what) {
    const auto found = object.find(key);
    if (found == object.end()) throw InputError("{}: the header has no '{}' for it", what, key);
    return *found;
}

Entry parse_entry(const std::string& name, const nlohmann::json& value, const fs::path& path) {
    const std::string what = where(path, name);
    if (!value.is_object()) throw InputError("{}: the header's entry is no object", what);
    Entry entry;
    entry.info.name = name;
    const nlohmann::json &dtype = member(value, "dtype", what), &shape = member(value, "shape", what),
                         &offsets = member(value, "data_offsets", what);
    if (!dtype.is_string()) throw InputError("{}: 'dtype' is {}; expected a string", what, dtype.dump());
    const auto type = dtype_from_safetensors(dtype.get<std::string>());
    if (!type) throw InputError("{}: unknown dtype '{}'; the weights of a model are F32, F16 or BF16", what, dtype.get<std::string>());
    entry.info.dtype = *type;
    if (!shape.is_array()) throw InputError("{}: 'shape' is {}; expected a list", what, shape.dump());
    std::uint64_t bytes = size_of(*type);
    bool overflow = false;
    for (const auto& d : shape) {
        const std::uint64_t dim = natural(d, what, "shape");
        overflow = overflow || dim > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
        // 2^63 bytes and more are no file's
        overflow = overflow || (dim != 0 && bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) / dim);
        if (overflow) throw InputError("{}: the shape {} overflows", what, shape.dump());
        bytes *= dim;
        entry.info.shape.push_back(static_cast<std::int64_t>(dim));
    }
    if (!offsets.is_array() || offsets.size() != 2)
        throw InputError("{}: 'data_offsets' is {}; expected two numbers", what, offsets.dump());
    entry.begin = natural(offsets[0], what, "data_offsets");
    entry.end = natural(offsets[1], what, "data_offsets");
    if (entry.end < entry.begin || entry.end - entry.begin != bytes)
        throw InputError("{}: data_offsets {} hold {} bytes; shape {} of {} needs {}", what, offsets.dump(),
                         entry.end < entry.begin ? 0 : entry.end - entry.begin, shape.dump(), safetensors_name(*type), bytes);
    return entry;
}

std::map<std::string, std::string> parse_metadata(const nlohmann::json& value) {
    // null, as some writers leave it, is the same as none; entries that are no strings are dropped, for nobody may rely on them
    std::map<std::string, std::string> result;
    if (value.is_object())
        for (const auto& [key, text] : value.items())
            if (text.is_string()) result.emplace(key, text.get<std::string>());
    return result;
}

/// Sorts by offset and checks that the tensors fill [0, data_bytes) without overlap or hole.
void check_layout(std::vector<Entry>& entries, std::uint64_t data_bytes, const fs::path& path) {
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
        return std::pair(a.begin, a.end) != std::pair(b.begin, b.end) ? std::pair(a.begin, a.end) < std::pair(b.begin, b.end)
                                                                      : a.info.name < b.info.name;
    });
    std::uint64_t at = 0;
    const std::string* previous = nullptr;
    for (const Entry& entry : entries) {
        const std::string what = where(path, entry.info.name);
        if (entry.end > data_bytes)
            throw InputError("{}: its bytes {} to {} lie past the end of the file, which holds {} bytes of data; the file is truncated",
                             what, entry.begin, entry.end, data_bytes);
        if (entry.begin < at)
            throw InputError("{}: its bytes begin at {} and overlap tensor '{}', which ends at {}", what, entry.begin,
                             previous == nullptr ? "" : *previous, at);
        if (entry.begin > at)
            throw InputError("{}: its bytes begin at {}, {} were expected: a hole that belongs to no tensor", what, entry.begin, at);
        at = entry.end;
        previous = &entry.info.name;
    }
    if (at != data_bytes)
        throw InputError("file '{}': {} bytes follow the last tensor and belong to none (data end at {}, the file holds {})", path.string(),
                         data_bytes - at, at, data_bytes);
}
}  // namespace

SafetensorsFile::SafetensorsFile(const fs::path& path) : path_(path) {
    Descriptor file = open_descriptor(path, O_RDONLY | O_NONBLOCK, "read");  // a pipe must not block before it is refused
    const std::string what = fmt::format("file '{}'", path.string());
    struct stat status {};
    if (::fstat(file.get(), &status) != 0) throw InputError("{}: fstat: {}", what, system_reason());
    if (!S_ISREG(status.st_mode)) throw InputError("{} is no regular file; expected a safetensors file", what);
    const auto size = static_cast<std::uint64_t>(status.st_size);
    if (size < 8) throw InputError("{} has {} bytes; a safetensors file begins with 8 bytes of header length", what, size);
    std::uint64_t length = 0;
    read_fully(file.get(), &length, sizeof length, 0, what);
    if (length > size - 8 || length > longest_header)
        throw InputError(
            "{}: the header's length is {}; the file has {} bytes after it and a header may have {}: no safetensors file, or a "
            "truncated one",
            what, length, size - 8, longest_header);
    std::string header(static_cast<std::size_t>(length), '\0');
    read_fully(file.get(), header.data(), length, 8, what);
    const nlohmann::json json = parse_json(header, path.string() + " (header)");
    if (!json.is_object()) throw InputError("{}: the header is no JSON object", what);
    std::vector<Entry> entries;
    for (const auto& [name, value] : json.items()) {
        if (name == "__metadata__")
            metadata_ = parse_metadata(value);
        else
            entries.push_back(parse_entry(name, value, path));
    }
    check_layout(entries, size - 8 - length, path);
    for (Entry& entry : entries) {
        index_.emplace(entry.info.name, tensors_.size());
        offsets_.push_back(8 + length + entry.begin);
        tensors_.push_back(std::move(entry.info));
    }
    fd_ = file.release();
}

SafetensorsFile::~SafetensorsFile() {
    if (fd_ >= 0) ::close(fd_);
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      tensors_(std::move(other.tensors_)),
      offsets_(std::move(other.offsets_)),
      index_(std::move(other.index_)),
      metadata_(std::move(other.metadata_)) {}

const TensorInfo* SafetensorsFile::find(const std::string& name) const {
    const auto found = index_.find(name);
    return found == index_.end() ? nullptr : &tensors_[found->second];
}

void SafetensorsFile::read(const TensorInfo& tensor, std::int64_t begin, std::int64_t count, void* out) const {
    const std::string what = where(path_, tensor.name);
    const auto found = index_.find(tensor.name);
    if (found == index_.end()) throw InputError("{}: there is no such tensor", what);
    const TensorInfo& info = tensors_[found->second];
    const std::int64_t elements = info.elements();
    if (begin < 0 || count < 0 || begin > elements || count > elements - begin)
        throw InputError("{}: elements {} to {} were asked for, it has {}", what, begin, begin + count, elements);
    const std::uint64_t size = size_of(info.dtype);
    read_fully(fd_, out, static_cast<std::uint64_t>(count) * size, offsets_[found->second] + static_cast<std::uint64_t>(begin) * size,
               what);
}

SafetensorsWriter::SafetensorsWriter(const fs::path& path, const std::vector<TensorInfo>& tensors) : path_(path) {
    nlohmann::ordered_json header;
    header["__metadata__"] = {{"format", "pt"}};  // readers of older transformers refuse files without it
    for (const TensorInfo& tensor : tensors) {
        const std::uint64_t begin = expected_;
        expected_ += tensor.bytes();
        header[tensor.name] = {{"dtype", safetensors_name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {begin, expected_}}};
    }
    std::string text;
    try {
        text = header.dump();
    } catch (const nlohmann::json::exception& e) {
        throw InputError("file '{}': a tensor's name cannot be written as JSON: {}", path.string(), e.what());
    }
    text.append((8 - text.size() % 8) % 8, ' ');  // data begin on a multiple of 8 bytes
    const std::uint64_t length = text.size();
    Descriptor file = open_descriptor(path, O_WRONLY | O_CREAT | O_EXCL, "create");
    write_fully(file.get(), &length, sizeof length, path);
    write_fully(file.get(), text.data(), length, path);
    fd_ = file.release();
}

SafetensorsWriter::~SafetensorsWriter() {
    if (fd_ >= 0) ::close(fd_);
}

void SafetensorsWriter::write(const void* data, std::uint64_t bytes) {
    write_fully(fd_, data, bytes, path_);
    begin_writeback(fd_, written_, written_ + bytes);
    written_ += bytes;
}

void SafetensorsWriter::close() {
    if (written_ != expected_)
        throw InputError("file '{}': {} bytes of tensors were written, its header promises {}", path_.string(), written_, expected_);
    sync_descriptor(fd_, path_);
    if (::close(std::exchange(fd_, -1)) != 0) throw InputError("cannot close '{}': {}", path_.string(), system_reason());
}

}  // namespace sherd::io
