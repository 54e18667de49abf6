#include "sherd/io/hdf5.hpp"

#include "io/hdf5_handle.hpp"
#include "io/system_calls.hpp"

#include "sherd/runtime/error.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <system_error>
#include <unistd.h>

namespace sherd::io {

using namespace detail;
namespace fs = std::filesystem;

namespace {
constexpr std::uint64_t largest_transfer = 16u << 20;  ///< bytes moved while the mutex is held
constexpr std::size_t most_open_datasets = 64;

std::atomic<std::uint64_t> chunk_cache_bytes{0};

Hid access_list(const fs::path& path) {
    Hid list = checked(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, path, "", "cannot make a property list");
    check(H5Pset_fapl_sec2(list), path, "", "cannot choose HDF5's plain file driver");
    check(H5Pset_fclose_degree(list, H5F_CLOSE_STRONG), path, "", "cannot set how the file closes");
    return list;
}

/// What keeps a path from being opened, as far as the file system can tell.
void check_readable(const fs::path& path) {
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (!fs::exists(status)) throw InputError("'{}' does not exist (or cannot be reached: {})", path.string(), error.message());
    if (fs::is_directory(status)) throw InputError("'{}' is a folder; expected an HDF5 file", path.string());
    if (!fs::is_regular_file(status)) throw InputError("'{}' is no regular file; expected an HDF5 file", path.string());
    if (::access(path.c_str(), R_OK) != 0) throw InputError("cannot read '{}': {}", path.string(), std::strerror(errno));
}

void swap_elements(void* data, std::size_t size, std::int64_t count) {
    auto* at = static_cast<unsigned char*>(data);
    for (std::int64_t i = 0; i < count; ++i, at += size) std::reverse(at, at + size);
}

DatasetInfo describe(hid_t id, hid_t type, DType dtype, bool swapped, const fs::path& path, const std::string& name) {
    DatasetInfo info;
    info.dtype = dtype;
    const Hid space = checked(H5Dget_space(id), H5Sclose, path, name, "cannot read the shape");
    const int rank = H5Sget_simple_extent_ndims(space);
    if (rank < 0) fail(path, name, "cannot read the shape");
    std::vector<hsize_t> dims(static_cast<std::size_t>(rank));
    if (rank > 0) check(H5Sget_simple_extent_dims(space, dims.data(), nullptr), path, name, "cannot read the shape");
    info.shape.assign(dims.begin(), dims.end());
    if (H5Sget_simple_extent_type(space) == H5S_NULL) info.shape = {0};
    const Hid creation = checked(H5Dget_create_plist(id), H5Pclose, path, name, "cannot read the layout");
    const H5D_layout_t layout = H5Pget_layout(creation);
    info.filtered = H5Pget_nfilters(creation) > 0;
    if (layout == H5D_CHUNKED) {
        std::vector<hsize_t> chunk(dims.size());
        if (H5Pget_chunk(creation, rank, chunk.data()) < 0) fail(path, name, "cannot read the chunk size");
        info.chunk_bytes = H5Tget_size(type);
        for (const hsize_t c : chunk) info.chunk_bytes *= c;
    }
    if (layout == H5D_CONTIGUOUS && !info.filtered && !swapped && H5Pget_external_count(creation) == 0)
        if (const haddr_t at = H5Dget_offset(id); at != HADDR_UNDEF) info.offset = at;
    H5Eclear2(H5E_DEFAULT);
    return info;
}

OpenDataset open_dataset(hid_t file, const fs::path& path, const std::string& name) {
    OpenDataset result;
    result.cache_setting = chunk_cache_bytes;
    const Hid access = checked(H5Pcreate(H5P_DATASET_ACCESS), H5Pclose, path, name, "cannot make a property list");
    if (result.cache_setting > 0)  // a prime number of slots; whole chunks leave the cache first (w0 = 1)
        check(H5Pset_chunk_cache(access, 521, result.cache_setting, 1.0), path, name, "cannot set the chunk cache");
    result.id = Hid(H5Dopen2(file, name.c_str(), access), H5Dclose);
    if (!result.id.valid()) {
        const std::string reason = hdf_reason();
        throw InputError("'{}': no dataset '{}' can be opened: {}", path.string(), name, reason);
    }
    result.type = checked(H5Dget_type(result.id), H5Tclose, path, name, "cannot read the type");
    const auto [dtype, swapped] = recognize_type(result.type, path, name);
    result.swap_bytes = swapped;
    result.info = describe(result.id, result.type, dtype, swapped, path, name);
    return result;
}

OpenDataset& dataset_of(HdfHandle& handle, const fs::path& path, const std::string& name) {
    if (const auto found = handle.datasets.find(name); found != handle.datasets.end()) {
        if (found->second.cache_setting == chunk_cache_bytes) return found->second;
        handle.datasets.erase(found);
    }
    if (handle.datasets.size() >= most_open_datasets) handle.datasets.clear();
    return handle.datasets.emplace(name, open_dataset(handle.file, path, name)).first->second;
}

/// Calls `move(memory space, file space, byte offset)` for the boxes of one piece.
void for_boxes(const OpenDataset& dataset, std::int64_t begin, std::int64_t count, const fs::path& path, const std::string& name,
               const std::function<herr_t(hid_t, hid_t, std::uint64_t)>& move, const char* what) {
    const std::size_t size = size_of(dataset.info.dtype);
    if (dataset.info.shape.empty()) {
        check(move(H5S_ALL, H5S_ALL, 0), path, name, what);
        return;
    }
    const Hid space = make_space(dataset.info.shape, path, name);
    std::uint64_t moved = 0;
    for (const Box& box : flat_boxes(dataset.info.shape, begin, count)) {
        const hsize_t elements = box.elements();
        const Hid memory = checked(H5Screate_simple(1, &elements, nullptr), H5Sclose, path, name, "cannot make a dataspace");
        check(H5Sselect_hyperslab(space, H5S_SELECT_SET, box.start.data(), nullptr, box.count.data(), nullptr), path, name,
              "cannot select elements");
        check(move(memory, space, moved), path, name, what);
        moved += elements * size;
    }
}

void list_members(hid_t parent, const std::string& prefix, bool recursive, const fs::path& path, std::vector<std::string>& out) {
    H5G_info_t info;
    check(H5Gget_info(parent, &info), path, prefix, "cannot list the group");
    for (hsize_t i = 0; i < info.nlinks; ++i) {
        const ssize_t length = H5Lget_name_by_idx(parent, ".", H5_INDEX_NAME, H5_ITER_INC, i, nullptr, 0, H5P_DEFAULT);
        if (length < 0) fail(path, prefix, "cannot list the group");
        std::string name(static_cast<std::size_t>(length) + 1, '\0');
        if (H5Lget_name_by_idx(parent, ".", H5_INDEX_NAME, H5_ITER_INC, i, name.data(), name.size(), H5P_DEFAULT) < 0)
            fail(path, prefix, "cannot list the group");
        name.pop_back();
        if (!recursive) {
            out.push_back(name);
            continue;
        }
        const Hid member = checked(H5Oopen(parent, name.c_str(), H5P_DEFAULT), H5Oclose, path, prefix + name, "cannot open the object");
        const H5I_type_t type = H5Iget_type(member);
        if (type == H5I_GROUP) list_members(member, prefix + name + "/", true, path, out);
        if (type == H5I_DATASET) out.push_back(prefix + name);
    }
}
}  // namespace

HdfFile::HdfFile(fs::path path, std::unique_ptr<HdfHandle> file) : path_(std::move(path)), file_(std::move(file)) {}
HdfFile::HdfFile(HdfFile&&) noexcept = default;
HdfFile& HdfFile::operator=(HdfFile&&) noexcept = default;
HdfFile::~HdfFile() = default;

HdfFile HdfFile::open(const fs::path& path) {
    check_readable(path);
    auto handle = std::make_unique<HdfHandle>();
    const HdfLock lock;
    if (H5Fis_hdf5(path.c_str()) <= 0) {
        H5Eclear2(H5E_DEFAULT);
        check_readable(path);  // it may have been removed meanwhile, as old checkpoints are
        throw InputError("'{}' is no HDF5 file ({} bytes, without HDF5's signature)", path.string(), fs::file_size(path));
    }
    const Hid access = access_list(path);
    handle->file = Hid(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access), H5Fclose);
    if (!handle->file.valid()) {
        const std::string reason = hdf_reason();
        check_readable(path);
        if (reason.find("truncated") != std::string::npos)
            throw InputError("'{}' is truncated: {} bytes are there, fewer than its header promises ({}); copy or make it again",
                             path.string(), fs::file_size(path), reason);
        if (reason.find("already open") != std::string::npos)
            throw InputError(
                "'{}' is marked as open for writing by another program: close it there, or run 'h5clear -s {}' if that program "
                "died ({})",
                path.string(), path.string(), reason);
        throw InputError("'{}' cannot be opened as HDF5; it is damaged or not finished: {}", path.string(), reason);
    }
    return HdfFile(path, std::move(handle));
}

HdfFile HdfFile::create(const fs::path& path) {
    auto handle = std::make_unique<HdfHandle>();
    const HdfLock lock;
    const Hid access = access_list(path);
    handle->file = checked(H5Fcreate(path.c_str(), H5F_ACC_EXCL, H5P_DEFAULT, access), H5Fclose, path, "", "cannot create the file");
    return HdfFile(path, std::move(handle));
}

bool HdfFile::exists(const std::string& name) const {
    const HdfLock lock;
    for (std::size_t end = 0; end != std::string::npos;) {  // H5Lexists wants every parent to be there
        end = name.find('/', end + 1);
        const std::string part = name.substr(0, end);
        if (part.empty() || part == "/") continue;
        if (H5Lexists(file_->file, part.c_str(), H5P_DEFAULT) <= 0 || H5Oexists_by_name(file_->file, part.c_str(), H5P_DEFAULT) <= 0) {
            H5Eclear2(H5E_DEFAULT);
            return false;
        }
    }
    return true;
}

std::vector<std::string> HdfFile::members(const std::string& group, bool recursive) const {
    const HdfLock lock;
    const Hid id = checked(H5Gopen2(file_->file, group.c_str(), H5P_DEFAULT), H5Gclose, path_, group, "no such group");
    std::vector<std::string> names;
    list_members(id, "", recursive, path_, names);
    return names;
}

DatasetInfo HdfFile::info(const std::string& dataset) const {
    const HdfLock lock;
    return dataset_of(*file_, path_, dataset).info;
}

void HdfFile::read(const std::string& dataset, std::int64_t begin, std::int64_t count, void* out) const {
    for (bool first = true; first || count > 0; first = false) {
        const HdfLock lock;  // taken anew for each piece, so that other threads come in between
        OpenDataset& open = dataset_of(*file_, path_, dataset);
        const std::size_t size = size_of(open.info.dtype);
        if (first) check_interval(open.info.shape, begin, count, path_, dataset);
        const std::int64_t piece = std::min<std::int64_t>(count, static_cast<std::int64_t>(largest_transfer / size));
        char* to = static_cast<char*>(out);
        if (piece > 0)
            for_boxes(
                open, begin, piece, path_, dataset,
                [&](hid_t memory, hid_t space, std::uint64_t at) {
                    return H5Dread(open.id, open.type, memory, space, H5P_DEFAULT, to + at);
                },
                "cannot read");
        if (open.swap_bytes) swap_elements(out, size, piece);
        out = to + static_cast<std::size_t>(piece) * size;
        begin += piece;
        count -= piece;
    }
}

void HdfFile::create_dataset(const std::string& dataset, const std::vector<std::int64_t>& shape, DType dtype) {
    const HdfLock lock;
    const Hid type = file_type(dtype), space = make_space(shape, path_, dataset);
    const Hid creation = checked(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, path_, dataset, "cannot make a property list");
    // whoever creates a dataset writes all of it: no fill values first
    check(H5Pset_fill_time(creation, H5D_FILL_TIME_NEVER), path_, dataset, "cannot set the fill time");
    create_with(file_->file, path_, dataset, type, space, creation);
}

void HdfFile::write(const std::string& dataset, std::int64_t begin, std::int64_t count, const void* data) {
    for (bool first = true; first || count > 0; first = false) {
        const HdfLock lock;
        OpenDataset& open = dataset_of(*file_, path_, dataset);
        const std::size_t size = size_of(open.info.dtype);
        if (first) check_interval(open.info.shape, begin, count, path_, dataset);
        const std::int64_t piece = std::min<std::int64_t>(count, static_cast<std::int64_t>(largest_transfer / size));
        const char* from = static_cast<const char*>(data);
        if (piece > 0)
            for_boxes(
                open, begin, piece, path_, dataset,
                [&](hid_t memory, hid_t space, std::uint64_t at) {
                    return H5Dwrite(open.id, open.type, memory, space, H5P_DEFAULT, from + at);
                },
                "cannot write");
        const std::uint64_t bytes = static_cast<std::uint64_t>(piece) * size;
        void* descriptor = nullptr;  // of the plain driver, which access_list chose
        if (bytes > 0 && H5Fget_vfd_handle(file_->file, H5P_DEFAULT, &descriptor) >= 0)
            begin_writeback(*static_cast<const int*>(descriptor), file_->written, file_->written + bytes);
        file_->written += bytes;
        data = from + bytes;
        begin += piece;
        count -= piece;
    }
}

void HdfFile::create_group(const std::string& group) {
    const HdfLock lock;
    const Hid links = checked(H5Pcreate(H5P_LINK_CREATE), H5Pclose, path_, group, "cannot make a property list");
    check(H5Pset_create_intermediate_group(links, 1), path_, group, "cannot ask for parent groups");
    const Hid id =
        checked(H5Gcreate2(file_->file, group.c_str(), links, H5P_DEFAULT, H5P_DEFAULT), H5Gclose, path_, group, "cannot create the group");
}

void HdfFile::link(const std::string& name, const std::string& dataset) {
    const HdfLock lock;
    const Hid links = checked(H5Pcreate(H5P_LINK_CREATE), H5Pclose, path_, name, "cannot make a property list");
    check(H5Pset_create_intermediate_group(links, 1), path_, name, "cannot ask for parent groups");
    check(H5Lcreate_hard(file_->file, dataset.c_str(), file_->file, name.c_str(), links, H5P_DEFAULT), path_, name,
          "cannot link to the dataset");
}

void HdfFile::close() {
    const HdfLock lock;
    file_->datasets.clear();
    if (file_->file.valid()) check(H5Fflush(file_->file, H5F_SCOPE_GLOBAL), path_, "", "cannot write");
    if (!file_->file.close()) fail(path_, "", "cannot close the file");
}

HdfFile open_kind(const fs::path& path, const std::string& kind) {
    HdfFile file = HdfFile::open(path);
    const auto found = file.string_attribute("/", "sherd.kind");
    if (!found) throw InputError("'{}' has no attribute 'sherd.kind'; expected a file of kind '{}'", path.string(), kind);
    if (*found != kind) throw InputError("'{}' is of kind '{}' (attribute 'sherd.kind'); expected '{}'", path.string(), *found, kind);
    const auto version = file.integer_attribute("/", "sherd.version");
    if (!version) throw InputError("'{}' has no attribute 'sherd.version'; expected 1", path.string());
    if (*version != 1) throw InputError("'{}' has 'sherd.version' {}; this program reads version 1", path.string(), *version);
    return file;
}

void set_chunk_cache_bytes(std::uint64_t bytes) {
    chunk_cache_bytes = bytes;
}

}  // namespace sherd::io
