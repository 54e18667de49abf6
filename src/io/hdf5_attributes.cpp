#include "io/hdf5_handle.hpp"

#include "sherd/io/hdf5.hpp"
#include "sherd/runtime/error.hpp"

#include <limits>

namespace sherd::io {

using namespace detail;

namespace {
std::string label(const std::string& object, const std::string& name) {
    return object == "/" || object.empty() ? "attribute " + name : object + ", attribute " + name;
}

/// The attribute, or an invalid handle where it is absent.
Hid open_attribute(hid_t file, const std::filesystem::path& path, const std::string& object, const std::string& name) {
    const htri_t there = H5Aexists_by_name(file, object.c_str(), name.c_str(), H5P_DEFAULT);
    if (there <= 0) {
        H5Eclear2(H5E_DEFAULT);
        return Hid();
    }
    return checked(H5Aopen_by_name(file, object.c_str(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose, path, label(object, name),
                   "cannot open the attribute");
}

hssize_t elements_of(hid_t space) {
    return H5Sget_simple_extent_type(space) == H5S_NULL ? 0 : H5Sget_simple_extent_npoints(space);
}

/// Cuts a fixed string where its padding begins.
std::string unpadded(std::string text, H5T_str_t padding) {
    if (padding == H5T_STR_NULLTERM) return text.substr(0, text.find('\0'));
    const char pad = padding == H5T_STR_SPACEPAD ? ' ' : '\0';
    while (!text.empty() && text.back() == pad) text.pop_back();
    return text;
}

/// Reads one string of type `type` through `read(memory type, buffer)`: H5Aread or H5Dread.
template <class Read>
std::string read_string(hid_t type, hid_t space, const std::filesystem::path& path, const std::string& what, Read read) {
    const H5T_class_t kind = H5Tget_class(type);
    const hssize_t elements = elements_of(space);
    const bool bytes = kind == H5T_INTEGER && H5Tget_size(type) == 1 && H5Tget_sign(type) == H5T_SGN_NONE;  // numpy.frombuffer(text, uint8)
    if (kind != H5T_STRING && !bytes) throw InputError("'{}', {}: expected a string, found another type", path.string(), what);
    if (bytes) {
        std::string text(static_cast<std::size_t>(elements), '\0');
        if (elements > 0) check(read(type, text.data()), path, what, "cannot read");
        return text;
    }
    if (elements == 0) return {};  // h5py stores the empty string as a null dataspace
    if (elements != 1) throw InputError("'{}', {}: expected one string, found {}", path.string(), what, elements);
    if (H5Tis_variable_str(type) > 0) {
        char* pointer = nullptr;
        check(read(type, &pointer), path, what, "cannot read");
        std::string text = pointer != nullptr ? pointer : "";
        check(H5Dvlen_reclaim(type, space, H5P_DEFAULT, &pointer), path, what, "cannot free the string");
        return text;
    }
    std::string text(H5Tget_size(type), '\0');
    check(read(type, text.data()), path, what, "cannot read");
    return unpadded(std::move(text), H5Tget_strpad(type));
}

void replace_attribute(hid_t file, const std::filesystem::path& path, const std::string& object, const std::string& name, hid_t type,
                       const void* value) {
    const std::string what = label(object, name);
    if (H5Aexists_by_name(file, object.c_str(), name.c_str(), H5P_DEFAULT) > 0)
        check(H5Adelete_by_name(file, object.c_str(), name.c_str(), H5P_DEFAULT), path, what, "cannot replace the attribute");
    const Hid space = make_space({}, path, what);
    const Hid id = checked(H5Acreate_by_name(file, object.c_str(), name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                           H5Aclose, path, what, "cannot create the attribute");
    check(H5Awrite(id, type, value), path, what, "cannot write the attribute");
}
}  // namespace

std::optional<std::int64_t> HdfFile::integer_attribute(const std::string& object, const std::string& name) const {
    const HdfLock lock;
    const Hid id = open_attribute(file_->file, path_, object, name);
    if (!id.valid()) return std::nullopt;
    const std::string what = label(object, name);
    const Hid type = checked(H5Aget_type(id), H5Tclose, path_, what, "cannot read the type");
    const Hid space = checked(H5Aget_space(id), H5Sclose, path_, what, "cannot read the shape");
    if (H5Tget_class(type) != H5T_INTEGER || elements_of(space) != 1)
        throw InputError("'{}', {}: expected one integer, found another type or shape", path_.string(), what);
    if (H5Tget_sign(type) == H5T_SGN_NONE) {
        std::uint64_t value = 0;
        check(H5Aread(id, H5T_NATIVE_UINT64, &value), path_, what, "cannot read");
        if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
            throw InputError("'{}', {}: {} is too large", path_.string(), what, value);
        return static_cast<std::int64_t>(value);
    }
    std::int64_t value = 0;
    check(H5Aread(id, H5T_NATIVE_INT64, &value), path_, what, "cannot read");
    return value;
}

std::optional<std::string> HdfFile::string_attribute(const std::string& object, const std::string& name) const {
    const std::string dataset = (object.empty() || object == "/" ? "" : object + "/") + name;
    {
        const HdfLock lock;
        if (const Hid id = open_attribute(file_->file, path_, object, name); id.valid()) {
            const std::string what = label(object, name);
            const Hid type = checked(H5Aget_type(id), H5Tclose, path_, what, "cannot read the type");
            const Hid space = checked(H5Aget_space(id), H5Sclose, path_, what, "cannot read the shape");
            return read_string(type, space, path_, what, [&](hid_t memory, void* to) { return H5Aread(id, memory, to); });
        }
    }
    if (!exists(dataset)) return std::nullopt;
    const HdfLock lock;
    const Hid object_id = checked(H5Oopen(file_->file, dataset.c_str(), H5P_DEFAULT), H5Oclose, path_, dataset, "cannot open");
    if (H5Iget_type(object_id) != H5I_DATASET) return std::nullopt;
    const Hid type = checked(H5Dget_type(object_id), H5Tclose, path_, dataset, "cannot read the type");
    const Hid space = checked(H5Dget_space(object_id), H5Sclose, path_, dataset, "cannot read the shape");
    return read_string(type, space, path_, "dataset " + dataset,
                       [&](hid_t memory, void* to) { return H5Dread(object_id, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, to); });
}

void HdfFile::set_attribute(const std::string& object, const std::string& name, std::int64_t value) {
    const HdfLock lock;
    const Hid type = file_type(DType::i64);
    replace_attribute(file_->file, path_, object, name, type, &value);
}

void HdfFile::set_attribute(const std::string& object, const std::string& name, const std::string& value) {
    if (value.find('\0') != std::string::npos)
        throw InputError("'{}', {}: the text holds a zero byte, which HDF5 strings cannot", path_.string(), label(object, name));
    const HdfLock lock;
    const Hid type = checked(H5Tcopy(H5T_C_S1), H5Tclose, path_, name, "cannot make a string type");
    check(H5Tset_size(type, H5T_VARIABLE), path_, name, "cannot make a string type");
    check(H5Tset_cset(type, H5T_CSET_UTF8), path_, name, "cannot make a string type");
    const char* pointer = value.c_str();
    replace_attribute(file_->file, path_, object, name, type, &pointer);
}

}  // namespace sherd::io
