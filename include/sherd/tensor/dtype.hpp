#pragma once
/// Element types of tensors, on disk and in memory.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace sherd {

/// All types that a safetensors file may hold. The program computes with f32 and bf16 (later f16) only.
enum class DType : std::uint8_t { f64, f32, f16, bf16, i64, i32, i16, i8, u64, u32, u16, u8, boolean, f8_e4m3, f8_e5m2 };

/// Bytes of one element.
std::size_t size_of(DType type) noexcept;
/// Name in messages and decks: "fp32", "bf16", "fp16", "int64", ...
std::string_view name_of(DType type) noexcept;
/// Name in a safetensors header: "F32", "BF16", ...
std::string_view safetensors_name(DType type) noexcept;
/// The type of a safetensors name; nothing where the name is unknown.
std::optional<DType> dtype_from_safetensors(std::string_view name) noexcept;
/// Whether a parameter may be stored in it and trained from it: fp32, fp16, bf16.
bool is_weight_dtype(DType type) noexcept;

}  // namespace sherd
