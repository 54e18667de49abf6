/// Checks every memory access of kernels that are compiled with -fsanitize=thread,bounds,alignment and linked with this file
/// in place of the sanitizers' own libraries: the compiler's calls land here. Finds races (between threads of a block since
/// its last barrier, lanes of a warp since the last __syncwarp, blocks of a launch), reads of shared memory that this block has not
/// written, accesses outside shared memory, known buffers or the own stack, and misaligned vector accesses.
/// This file and execution.cpp are compiled without instrumentation.
#include "execution.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <unistd.h>
#include <unordered_map>
#include <vector>

extern "C" char __bss_start, _end, __executable_start;

namespace emu {
namespace {

enum Kind : std::uint8_t { kRead = 0, kWrite = 1, kAtomic = 2 };

/// One earlier access to some bytes of a 4-byte word. Four are kept per word; more recent ones displace unordered ones at random.
struct Slot {
    std::uint32_t thread = 0;  // 1024 * block counter + linear thread; block counter from 1
    std::uint32_t epoch = 0, clock = 0;
    std::uint8_t bytes = 0;
    Kind kind = kRead;
    const void* code = nullptr;
};

/// file:line by binutils' addr2line, or a code offset; only ever run to word a fault.
struct SourceLine {
    char text[256];
    explicit SourceLine(const void* code) {
        const std::size_t offset = static_cast<std::size_t>(static_cast<const char*>(code) - &__executable_start - 1);
        std::snprintf(text, sizeof text, "code +0x%zx", offset);
        char self[1024] = {}, command[1200];
        if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) return;
        std::snprintf(command, sizeof command, "addr2line -s -e '%s' 0x%zx 2>/dev/null", self, offset);
        FILE* pipe = popen(command, "r");
        if (pipe == nullptr) return;
        char line[256];
        if (std::fgets(line, sizeof line, pipe) != nullptr && line[0] != '?') {
            line[std::strcspn(line, " \n")] = '\0';
            std::memcpy(text, line, sizeof text);
        }
        pclose(pipe);
    }
};

struct Word {
    Slot slots[4];
    std::uint32_t written_by_block = 0;
    std::uint8_t written_bytes = 0;
    std::uint8_t global_reads = 0, global_writes = 0;  // of the launch, by byte
};

struct Page {
    std::uint32_t launch = 0;
    std::vector<Word> words = std::vector<Word>(1024);
};

struct Checker final : Observer {
    std::unordered_map<std::uintptr_t, Page> pages;
    std::uint32_t launch = 0, block = 0, epoch = 0, evictions = 0;
    bool busy = false;
    std::uint32_t seen[32][32][32];  // [warp][lane][other lane]: clock of the other lane that this one has synchronized with

    Checker() { observer = this; }

    void launch_begins() override {
        busy = false;  // a fault never returns to access()
        ++launch;
        block = 0;
    }
    void block_begins() override {
        ++block;
        epoch = 0;
        for (auto& warp : seen) {
            std::memset(warp, 0, sizeof warp);
            for (unsigned l = 0; l < 32; ++l) warp[l][l] = 1;
        }
    }
    void block_barrier() override { ++epoch; }
    void warp_barrier(unsigned first_thread, unsigned present) override {
        auto& warp = seen[first_thread / 32];
        std::uint32_t joined[32] = {};
        for (unsigned l = 0; l < 32; ++l)
            if ((present >> l & 1U) != 0)
                for (unsigned o = 0; o < 32; ++o) joined[o] = std::max(joined[o], warp[l][o]);
        for (unsigned l = 0; l < 32; ++l)
            if ((present >> l & 1U) != 0) {
                std::memcpy(warp[l], joined, sizeof joined);
                ++warp[l][l];
            }
    }
    void atomic_access(const void* p, std::size_t bytes, const void* code) override { access(p, bytes, kAtomic, code); }

    /// Runs of bytes that are alike.
    std::vector<Touched> touched() const override {
        std::vector<std::uintptr_t> numbers;
        for (const auto& [number, page] : pages)
            if (page.launch == launch) numbers.push_back(number);
        std::ranges::sort(numbers);
        std::vector<Touched> all;
        for (const bool writes : {false, true})
            for (const std::uintptr_t number : numbers)
                for (unsigned i = 0; i < 4096; ++i) {
                    const Word& w = pages.at(number).words[i / 4];
                    if (((writes ? w.global_writes : w.global_reads) >> (i & 3) & 1) == 0) continue;
                    const char* p = reinterpret_cast<const char*>((number << 12) + i);
                    if (!all.empty() && all.back().end == p && all.back().writes == writes)
                        ++all.back().end;
                    else
                        all.push_back({p, p + 1, writes});
                }
        return all;
    }

    bool ordered(const Slot& s, unsigned self, bool shared) const {
        const unsigned other_block = s.thread / 1024, other = s.thread % 1024;
        if (other_block != block) return shared;
        if (other == self || s.epoch < epoch) return true;
        return other / 32 == self / 32 && seen[self / 32][self % 32][other % 32] >= s.clock;
    }

    Word& word(std::uintptr_t address) {
        Page& page = pages[address >> 12];
        if (page.launch != launch) {
            page.launch = launch;
            page.words.assign(1024, {});
        }
        return page.words[(address & 4095) / 4];
    }

    void access(const void* p, std::size_t bytes, Kind kind, const void* code) {
        if (bytes == 0 || !inside_kernel() || busy) return;
        busy = true;  // what follows may run instrumented copies of library templates
        examine(p, bytes, kind, code);
        busy = false;
    }

    void examine(const void* p, std::size_t bytes, Kind kind, const void* code) {
        if (in_parameter_space(p)) return;
        if (on_any_stack(p)) {
            if (!on_own_stack(p)) fail("access to another thread's local memory at %s", SourceLine(code).text);
            return;
        }
        const char* c = static_cast<const char*>(p);
        const char* dynamic = static_cast<const char*>(dynamic_shared());
        bool shared = c >= &__bss_start && c < &_end;
        if (c >= dynamic - 64 * 1024 && c < dynamic + 512 * 1024) {
            shared = c >= dynamic && c + bytes <= dynamic + dynamic_shared_bytes();
            if (!shared && outside_buffers(p, bytes)) {
                fail("%s of %zu B at offset %td of %zu B of dynamic shared memory at %s", name(kind), bytes, c - dynamic,
                     dynamic_shared_bytes(), SourceLine(code).text);
            }
        }
        if (!shared) {
            if (c >= &__executable_start && c < &__bss_start) return;  // constants and the emulation's own variables
            if (outside_buffers(p, bytes)) fail("%s outside of every buffer at %s", name(kind), SourceLine(code).text);
        }
        const auto first = reinterpret_cast<std::uintptr_t>(p);
        for (std::uintptr_t a = first; a < first + bytes;) {
            const std::uintptr_t end = std::min(first + bytes, (a & ~std::uintptr_t{3}) + 4);
            const auto mask = static_cast<std::uint8_t>(((1U << (end - a)) - 1U) << (a & 3));
            check(word(a), mask, kind, shared, code);
            a = end;
        }
    }

    void check(Word& w, std::uint8_t mask, Kind kind, bool shared, const void* code) {
        const unsigned self = linear_thread();
        if (shared) {
            if (w.written_by_block != block) {
                w.written_by_block = block;
                w.written_bytes = 0;
            }
            if (kind != kWrite && (w.written_bytes & mask) != mask)
                fail("read of shared memory that nobody in the block has written at %s", SourceLine(code).text);
            if (kind != kRead) w.written_bytes |= mask;
        } else {
            if (kind != kWrite) w.global_reads |= mask;
            if (kind != kRead) w.global_writes |= mask;
        }
        Slot* into = nullptr;
        for (Slot& s : w.slots) {
            if (s.bytes == 0) {
                into = &s;
                continue;
            }
            if ((s.bytes & mask) != 0 && (s.kind == kWrite || kind == kWrite || s.kind != kind) && !ordered(s, self, shared)) {
                fail("race on %s memory: this %s at %s and an earlier %s by thread %u%s at %s", shared ? "shared" : "global", name(kind),
                     SourceLine(code).text, name(s.kind), s.thread % 1024, s.thread / 1024 == block ? "" : " of another block",
                     SourceLine(s.code).text);
            }
            if ((s.bytes & ~mask) == 0 && ordered(s, self, shared) && (kind == kWrite || s.kind == kind)) into = &s;  // superseded
        }
        if (!into) into = &w.slots[evictions++ % 4];
        *into = {block * 1024 + self, epoch, seen[self / 32][self % 32][self % 32], mask, kind, code};
    }

    static const char* name(Kind k) { return k == kRead ? "read" : k == kWrite ? "write" : "atomic"; }
};

Checker checker;

struct SourceLocation {
    const char* file;
    std::uint32_t line, column;
};

const char* base_name(const char* path) {
    const char* slash = std::strrchr(path, '/');
    return slash ? slash + 1 : path;
}

}  // namespace
}  // namespace emu

extern "C" {

#define EMU_ACCESS(size)                                                        \
    void __tsan_read##size(void* p) {                                           \
        emu::checker.access(p, size, emu::kRead, __builtin_return_address(0));  \
    }                                                                           \
    void __tsan_write##size(void* p) {                                          \
        emu::checker.access(p, size, emu::kWrite, __builtin_return_address(0)); \
    }                                                                           \
    void __tsan_unaligned_read##size(void* p) {                                 \
        emu::checker.access(p, size, emu::kRead, __builtin_return_address(0));  \
    }                                                                           \
    void __tsan_unaligned_write##size(void* p) {                                \
        emu::checker.access(p, size, emu::kWrite, __builtin_return_address(0)); \
    }
EMU_ACCESS(1)
EMU_ACCESS(2)
EMU_ACCESS(4)
EMU_ACCESS(8)
EMU_ACCESS(16)
void __tsan_read_range(void* p, unsigned long n) {
    emu::checker.access(p, n, emu::kRead, __builtin_return_address(0));
}
void __tsan_write_range(void* p, unsigned long n) {
    emu::checker.access(p, n, emu::kWrite, __builtin_return_address(0));
}
/// GCC guards `static T s[N]` of a 16-bit type T in a template, though nothing is to be initialized.
char __tsan_atomic8_load(const volatile char* p, int) {
    return *p;
}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

struct TypeMismatch {
    emu::SourceLocation where;
    const void* type;
    unsigned char log_alignment, kind;
};
void __ubsan_handle_type_mismatch_v1(TypeMismatch* d, std::uintptr_t p) {
    emu::fail("access misaligned by %zu of %u B at %s:%u", p & ((std::uintptr_t{1} << d->log_alignment) - 1), 1U << d->log_alignment,
              emu::base_name(d->where.file), d->where.line);
}
struct OutOfBounds {
    emu::SourceLocation where;
};
void __ubsan_handle_out_of_bounds(OutOfBounds* d, std::uintptr_t index) {
    emu::fail("index %zu out of bounds at %s:%u", index, emu::base_name(d->where.file), d->where.line);
}
}
