#include "io/hdf5_handle.hpp"

#include "sherd/io/weight_source.hpp"
#include "sherd/runtime/error.hpp"

#include <algorithm>

namespace sherd::io::detail {

hsize_t Box::elements() const noexcept {
    hsize_t n = 1;
    for (const hsize_t c : count) n *= c;
    return n;
}

std::vector<Box> flat_boxes(const std::vector<std::int64_t>& shape, std::int64_t begin, std::int64_t count) {
    std::vector<Box> boxes;
    const std::size_t rank = shape.size();
    std::vector<hsize_t> stride(rank, 1);  // elements that one step along a dimension skips
    for (std::size_t d = rank; d-- > 1;) stride[d - 1] = stride[d] * static_cast<hsize_t>(shape[d]);
    hsize_t at = static_cast<hsize_t>(begin);
    const hsize_t end = at + static_cast<hsize_t>(count);
    while (at < end) {
        // the outermost dimension along which a whole number of steps fits: it begins on a multiple of its stride
        std::size_t d = 0;
        while (d + 1 < rank && (at % stride[d] != 0 || end - at < stride[d])) ++d;
        Box box{std::vector<hsize_t>(rank), std::vector<hsize_t>(rank, 1)};
        hsize_t rest = at;
        for (std::size_t i = 0; i < rank; ++i) {
            box.start[i] = rest / stride[i];
            rest %= stride[i];
            if (i > d) box.count[i] = static_cast<hsize_t>(shape[i]);
        }
        box.count[d] = std::min((end - at) / stride[d], static_cast<hsize_t>(shape[d]) - box.start[d]);
        at += box.count[d] * stride[d];
        boxes.push_back(std::move(box));
    }
    return boxes;
}

Hid make_space(const std::vector<std::int64_t>& shape, const std::filesystem::path& path, const std::string& object) {
    if (shape.empty()) return checked(H5Screate(H5S_SCALAR), H5Sclose, path, object, "cannot make a dataspace");
    const std::vector<hsize_t> dims(shape.begin(), shape.end());
    return checked(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), H5Sclose, path, object,
                   "cannot make a dataspace");
}

void check_interval(const std::vector<std::int64_t>& shape, std::int64_t begin, std::int64_t count, const std::filesystem::path& path,
                    const std::string& dataset) {
    std::int64_t elements = 1;
    for (const std::int64_t d : shape) elements *= d;
    if (begin < 0 || count < 0 || begin > elements || count > elements - begin)
        throw InputError("'{}', dataset '{}': elements {} to {} were asked for, it has {} (shape {})", path.string(), dataset, begin,
                         begin + count, elements, to_string(shape));
}

void create_with(hid_t file, const std::filesystem::path& path, const std::string& dataset, hid_t type, hid_t space, hid_t creation) {
    const Hid links = checked(H5Pcreate(H5P_LINK_CREATE), H5Pclose, path, dataset, "cannot make a property list");
    check(H5Pset_create_intermediate_group(links, 1), path, dataset, "cannot ask for parent groups");
    check(H5Pset_char_encoding(links, H5T_CSET_UTF8), path, dataset, "cannot ask for UTF-8 names");
    const Hid id = checked(H5Dcreate2(file, dataset.c_str(), type, space, links, creation, H5P_DEFAULT), H5Dclose, path, dataset,
                           "cannot create the dataset");
}

}  // namespace sherd::io::detail
