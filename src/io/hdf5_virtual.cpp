#include "io/hdf5_handle.hpp"

#include "sherd/io/hdf5.hpp"
#include "sherd/runtime/error.hpp"

#include <cstring>
#include <limits>

namespace sherd::io {

using namespace detail;

namespace {
/// HDF5 takes the source's name for a printf-like pattern.
std::string without_patterns(const std::string& name) {
    std::string result;
    for (const char c : name) result += c == '%' ? "%%" : std::string(1, c);
    return result;
}

void set_nan_fill(hid_t creation, hid_t type, DType dtype, const std::filesystem::path& path, const std::string& dataset) {
    unsigned char bits[8] = {};
    const double f64 = std::numeric_limits<double>::quiet_NaN();
    const float f32 = std::numeric_limits<float>::quiet_NaN();
    const std::uint16_t f16 = 0x7e00, bf16 = 0x7fc0;
    switch (dtype) {
        case DType::f64:
            std::memcpy(bits, &f64, sizeof f64);
            break;
        case DType::f32:
            std::memcpy(bits, &f32, sizeof f32);
            break;
        case DType::f16:
            std::memcpy(bits, &f16, sizeof f16);
            break;
        case DType::bf16:
            std::memcpy(bits, &bf16, sizeof bf16);
            break;
        default:
            return;  // integers keep HDF5's 0
    }
    check(H5Pset_fill_value(creation, type, bits), path, dataset, "cannot set the fill value");
}
}  // namespace

void HdfFile::create_virtual(const std::string& dataset, const std::vector<std::int64_t>& shape, DType dtype,
                             const std::vector<Piece>& pieces) {
    if (shape.empty()) throw InputError("'{}', dataset '{}': a virtual dataset needs at least one dimension", path_.string(), dataset);
    const HdfLock lock;
    const Hid type = file_type(dtype), whole = make_space(shape, path_, dataset);
    const Hid creation = checked(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, path_, dataset, "cannot make a property list");
    set_nan_fill(creation, type, dtype, path_, dataset);
    for (const Piece& piece : pieces) {
        check_interval(shape, piece.begin, piece.count, path_, dataset);
        if (piece.count == 0) continue;
        const Hid source = make_space({piece.count}, path_, dataset);
        hsize_t at = 0;
        for (const Box& box : flat_boxes(shape, piece.begin, piece.count)) {
            const hsize_t elements = box.elements();
            check(H5Sselect_hyperslab(whole, H5S_SELECT_SET, box.start.data(), nullptr, box.count.data(), nullptr), path_, dataset,
                  "cannot select elements");
            check(H5Sselect_hyperslab(source, H5S_SELECT_SET, &at, nullptr, &elements, nullptr), path_, dataset, "cannot select elements");
            check(H5Pset_virtual(creation, whole, without_patterns(piece.file).c_str(), without_patterns(piece.source).c_str(), source),
                  path_, dataset, "cannot map a piece");
            at += elements;
        }
    }
    check(H5Sselect_all(whole), path_, dataset, "cannot select elements");
    create_with(file_->file, path_, dataset, type, whole, creation);
}

}  // namespace sherd::io
