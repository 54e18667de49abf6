#include "backend/cpu/machine.hpp"

#include "sherd/runtime/error.hpp"

#include <dnnl.hpp>

#include <cstdlib>
#include <fstream>
#include <immintrin.h>
#include <limits>
#include <sys/mman.h>

namespace sherd::cpu {

namespace {

constexpr std::size_t alignment = 256, huge_page = std::size_t{2} << 20, huge_from = std::size_t{4} << 20;

/// The number after "key:" in a file of /proc, in kB there, in bytes here; `missing` where there is none.
std::uint64_t read_kilobytes(const char* path, const std::string& key, std::uint64_t missing) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        if (line.rfind(key + ":", 0) == 0) return std::strtoull(line.c_str() + key.size() + 1, nullptr, 10) * 1024;
    }
    return missing;
}

/// Whether oneDNN uses that instruction set here: the CPU has it and DNNL_MAX_CPU_ISA does not forbid it.
bool products_may_use(dnnl::cpu_isa isa) noexcept {
    // the values of cpu_isa are sets of bits: a newer set contains the older ones
    const auto wanted = static_cast<unsigned>(isa);
    return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & wanted) == wanted;
}

}  // namespace

std::string cpu_name() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);) {
        if (line.rfind("model name", 0) != 0) continue;
        const auto colon = line.find(": ");
        if (colon != std::string::npos) return line.substr(colon + 2);
    }
    return "unknown CPU";
}

bool has_avx512() noexcept {
    static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd") &&
                            products_may_use(dnnl::cpu_isa::avx512_core);
    return has;
}

bool has_avx512_bf16() noexcept {
    return products_may_use(dnnl::cpu_isa::avx512_core_bf16);
}

std::uint64_t available_memory() {
    return read_kilobytes("/proc/meminfo", "MemAvailable", std::numeric_limits<std::uint64_t>::max());
}

std::uint64_t peak_resident_memory() {
    // not getrusage: its maximum survives exec and would be that of the launcher
    return read_kilobytes("/proc/self/status", "VmHWM", 0);
}

void* allocate_memory(std::size_t bytes, const std::string& purpose) {
    if (bytes == 0) return nullptr;
    const std::uint64_t available = available_memory();
    // Linux grants more than there is and kills later: refuse what cannot fit while there is a place to say so
    if (bytes > available) {
        throw DeviceError(
            "cannot allocate {} bytes for {}: this machine ({}) has {} bytes available; use more ranks, a smaller "
            "batch.micro_tokens or a strategy that shards more",
            bytes, purpose, host_name(), available);
    }
    void* data = nullptr;
    const bool huge = bytes >= huge_from;
    if (const int code = ::posix_memalign(&data, huge ? huge_page : alignment, bytes); code != 0) {
        throw DeviceError(
            "cannot allocate {} bytes for {} on {}: posix_memalign says {} ({} bytes available); is a limit on memory set "
            "(ulimit -v)?",
            bytes, purpose, host_name(), code, available);
    }
    // advice only: without huge pages everything works, slower
    if (huge) (void)::madvise(data, bytes, MADV_HUGEPAGE);
    return data;
}

void release_memory(void* data) noexcept {
    std::free(data);
}

void flush_denormals() noexcept {
    _MM_SET_FLUSH_ZERO_MODE(_MM_FLUSH_ZERO_ON);
    _mm_setcsr(_mm_getcsr() | 0x0040u);  // DAZ
}

}  // namespace sherd::cpu
