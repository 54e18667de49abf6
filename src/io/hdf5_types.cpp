#include "io/hdf5_handle.hpp"

#include "sherd/runtime/error.hpp"

#include <bit>

namespace sherd::io::detail {

static_assert(std::endian::native == std::endian::little, "files are little endian and are read without conversion");

namespace {
/// bfloat16 as HDF5 and h5dump understand it: sign bit 15, exponent 8 bits from bit 7, mantissa 7 bits from bit 0, bias 127.
Hid bfloat16_type() {
    Hid type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
    // the fields must lie inside the new size before the size shrinks
    if (!type.valid() || H5Tset_fields(type, 15, 7, 8, 0, 7) < 0 || H5Tset_size(type, 2) < 0 || H5Tset_ebias(type, 127) < 0)
        throw InputError("HDF5 cannot make the bfloat16 type: {}", hdf_reason());
    return type;
}

struct FloatLayout {
    std::size_t size, sign, exponent_at, exponent_bits, mantissa_at, mantissa_bits, bias;
    bool operator==(const FloatLayout&) const = default;
};
constexpr FloatLayout f64_layout{8, 63, 52, 11, 0, 52, 1023}, f32_layout{4, 31, 23, 8, 0, 23, 127}, f16_layout{2, 15, 10, 5, 0, 10, 15},
    bf16_layout{2, 15, 7, 8, 0, 7, 127};

FloatLayout layout_of(hid_t type) {
    FloatLayout layout{};
    H5Tget_fields(type, &layout.sign, &layout.exponent_at, &layout.exponent_bits, &layout.mantissa_at, &layout.mantissa_bits);
    layout.size = H5Tget_size(type);
    layout.bias = H5Tget_ebias(type);
    return layout;
}

DType integer_type(std::size_t size, bool is_signed) {
    if (size == 1) return is_signed ? DType::i8 : DType::u8;
    if (size == 2) return is_signed ? DType::i16 : DType::u16;
    if (size == 4) return is_signed ? DType::i32 : DType::u32;
    return is_signed ? DType::i64 : DType::u64;
}
}  // namespace

Hid file_type(DType type) {
    hid_t id = H5I_INVALID_HID;
    switch (type) {
        case DType::f64:
            id = H5T_IEEE_F64LE;
            break;
        case DType::f32:
            id = H5T_IEEE_F32LE;
            break;
        case DType::i64:
            id = H5T_STD_I64LE;
            break;
        case DType::i32:
            id = H5T_STD_I32LE;
            break;
        case DType::i16:
            id = H5T_STD_I16LE;
            break;
        case DType::i8:
            id = H5T_STD_I8LE;
            break;
        case DType::u64:
            id = H5T_STD_U64LE;
            break;
        case DType::u32:
            id = H5T_STD_U32LE;
            break;
        case DType::u16:
            id = H5T_STD_U16LE;
            break;
        case DType::boolean:
        case DType::u8:
            id = H5T_STD_U8LE;
            break;
        case DType::bf16:
            return bfloat16_type();
        case DType::f16: {
            Hid half(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
            if (!half.valid() || H5Tset_fields(half, 15, 10, 5, 0, 10) < 0 || H5Tset_size(half, 2) < 0 || H5Tset_ebias(half, 15) < 0)
                throw InputError("HDF5 cannot make the fp16 type: {}", hdf_reason());
            return half;
        }
        case DType::f8_e4m3:
        case DType::f8_e5m2:
            throw InputError("{} cannot be stored in HDF5 files", name_of(type));
    }
    Hid copy(H5Tcopy(id), H5Tclose);
    if (!copy.valid()) throw InputError("HDF5 cannot copy the type {}: {}", name_of(type), hdf_reason());
    return copy;
}

std::pair<DType, bool> recognize_type(hid_t type, const std::filesystem::path& path, const std::string& dataset) {
    const H5T_class_t kind = H5Tget_class(type);
    const std::size_t size = H5Tget_size(type);
    const bool swap = size > 1 && H5Tget_order(type) == H5T_ORDER_BE;
    if (kind == H5T_INTEGER && (size == 1 || size == 2 || size == 4 || size == 8))
        return {integer_type(size, H5Tget_sign(type) != H5T_SGN_NONE), swap};
    if (kind == H5T_ENUM && size == 1) return {DType::boolean, false};  // how h5py stores bool
    if (kind == H5T_FLOAT) {
        const FloatLayout layout = layout_of(type);
        if (layout == f64_layout) return {DType::f64, swap};
        if (layout == f32_layout) return {DType::f32, swap};
        if (layout == f16_layout) return {DType::f16, swap};
        if (layout == bf16_layout) return {DType::bf16, swap};
        throw InputError(
            "'{}', dataset '{}': an unknown float of {} bytes (exponent {} bits, mantissa {} bits, bias {}); expected fp64, fp32, "
            "fp16 or bfloat16 (fields 15/7/8/0/7, size 2, bias 127)",
            path.string(), dataset, layout.size, layout.exponent_bits, layout.mantissa_bits, layout.bias);
    }
    const char* found = kind == H5T_STRING     ? "strings"
                        : kind == H5T_COMPOUND ? "a compound type"
                        : kind == H5T_VLEN     ? "a variable-length type"
                        : kind == H5T_OPAQUE   ? "an opaque type"
                                               : "a type that is no number";
    throw InputError("'{}', dataset '{}': holds {} of {} bytes; expected integers or floats", path.string(), dataset, found, size);
}

}  // namespace sherd::io::detail
