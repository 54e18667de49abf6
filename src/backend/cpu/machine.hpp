#pragma once
/// What the machine is and has: read from /proc and CPUID.
#include <cstddef>
#include <cstdint>
#include <string>

namespace sherd::cpu {

/// "AMD EPYC 9654", or "unknown CPU".
std::string cpu_name();
/// Whether loops may run as AVX-512 (F, BW, VL, DQ, CD). DNNL_MAX_CPU_ISA=AVX2 forbids it to them and to oneDNN.
bool has_avx512() noexcept;
/// Whether oneDNN multiplies bf16 in hardware here (avx512_bf16 or more), DNNL_MAX_CPU_ISA respected.
bool has_avx512_bf16() noexcept;
/// MemAvailable of /proc/meminfo in bytes; the highest number where it cannot be read.
std::uint64_t available_memory();
/// Peak resident memory of this process in bytes (VmHWM).
std::uint64_t peak_resident_memory();

/// Memory aligned to 256 bytes, in huge pages where it is large. Throws DeviceError naming the purpose. nullptr for no bytes.
void* allocate_memory(std::size_t bytes, const std::string& purpose);
void release_memory(void* data) noexcept;

/// Denormals become zero in the calling thread, as input and as result.
void flush_denormals() noexcept;

}  // namespace sherd::cpu
