#include "sherd/tensor/dtype.hpp"

#include <array>

namespace sherd {

namespace {
struct Row {
    DType type;
    std::size_t bytes;
    std::string_view name, safetensors;
};
// indexed by the enumerator: the order must be that of DType
constexpr std::array<Row, 15> table{{
    {DType::f64, 8, "fp64", "F64"},
    {DType::f32, 4, "fp32", "F32"},
    {DType::f16, 2, "fp16", "F16"},
    {DType::bf16, 2, "bf16", "BF16"},
    {DType::i64, 8, "int64", "I64"},
    {DType::i32, 4, "int32", "I32"},
    {DType::i16, 2, "int16", "I16"},
    {DType::i8, 1, "int8", "I8"},
    {DType::u64, 8, "uint64", "U64"},
    {DType::u32, 4, "uint32", "U32"},
    {DType::u16, 2, "uint16", "U16"},
    {DType::u8, 1, "uint8", "U8"},
    {DType::boolean, 1, "bool", "BOOL"},
    {DType::f8_e4m3, 1, "fp8_e4m3", "F8_E4M3"},
    {DType::f8_e5m2, 1, "fp8_e5m2", "F8_E5M2"},
}};
const Row& row(DType type) noexcept {
    return table[static_cast<std::size_t>(type)];
}
}  // namespace

std::size_t size_of(DType type) noexcept {
    return row(type).bytes;
}
std::string_view name_of(DType type) noexcept {
    return row(type).name;
}
std::string_view safetensors_name(DType type) noexcept {
    return row(type).safetensors;
}

std::optional<DType> dtype_from_safetensors(std::string_view name) noexcept {
    for (const Row& r : table)
        if (r.safetensors == name) return r.type;
    return std::nullopt;
}

bool is_weight_dtype(DType type) noexcept {
    return type == DType::f32 || type == DType::f16 || type == DType::bf16;
}

}  // namespace sherd
