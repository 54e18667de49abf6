#include "execution.hpp"

#include "fibers.hpp"

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <vector>

uint3 threadIdx{1, 1, 1}, blockIdx{1, 1, 1};
dim3 blockDim{1, 1, 1}, gridDim{1, 1, 1};

namespace emu {

Options options;
Observer* observer = nullptr;

namespace {

constexpr std::size_t kMaxThreads = 1024;
constexpr std::size_t kMaxSharedBytes = 227 * 1024;  // sm_90; sm_80 has 163 KiB, sm_75 64

enum class State : std::uint8_t { fresh, ready, at_barrier, at_warp, done };

struct Thread {
    State state = State::fresh;
    Fiber* fiber = nullptr;
    uint3 index{};
    const char* kind = "";
    Where where;
};

struct Exchange {
    unsigned mask = 0, arrived = 0;
    const char* kind = "";
    Combine combine = nullptr;
    Where where;
    void* operands[32];
};

struct Warp {
    unsigned exited = 0;
    std::vector<Exchange> pending;
};

struct Pending {
    Copy copy;
    bool ends_batch;  // a commit, not a copy
};

struct Machine {
    StackArena stacks{kMaxThreads};
    std::vector<Fiber> fibers = std::vector<Fiber>(kMaxThreads);
    std::vector<Fiber*> idle;
    std::vector<Thread> threads;
    std::vector<Warp> warps;
    std::vector<std::deque<Pending>> copies;  // of each thread, in order
    const Launch* launch = nullptr;
    const void* arguments = nullptr;
    std::size_t argument_bytes = 0;
    void (*call)(const void*) = nullptr;
    unsigned current = 0;
    bool inside = false, quiet = false, failed = false;  // quiet: on a fiber, in code of the emulation
    std::string message;
    unsigned waiting = 0, exited = 0;
    Votes votes{}, votes_result{};
    Where barrier_where;
    std::unique_ptr<char[]> shared{new char[kMaxSharedBytes + 256]};
    char* shared_base = reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(shared.get()) + 127) / 128 * 128);

    Machine() {
        for (std::size_t i = kMaxThreads; i-- > 0;) restart(i);
    }
    void restart(std::size_t fiber);
};

Machine& machine() {
    static Machine m;
    return m;
}

std::string text(const uint3& i) {
    return "(" + std::to_string(i.x) + "," + std::to_string(i.y) + "," + std::to_string(i.z) + ")";
}

bool same(const Where& a, const Where& b) {
    return a.line == b.line && std::strcmp(a.path, b.path) == 0 && std::strcmp(a.function, b.function) == 0;
}

/// The emulation calls library templates whose linked copy may be the instrumented one of a kernel's file.
struct Quiet {
    Machine& m;
    explicit Quiet(Machine& machine) : m(machine) { m.quiet = true; }
    ~Quiet() { m.quiet = false; }
    Quiet(const Quiet&) = delete;
};

void to_scheduler(Machine& m) {
    m.inside = false;
    m.threads[m.current].fiber->suspend();
    m.inside = m.quiet = true;
}

void complete(Machine& m, unsigned warp, std::size_t slot) {
    Warp& w = m.warps[warp];
    const Exchange e = w.pending[slot];
    w.pending.erase(w.pending.begin() + static_cast<std::ptrdiff_t>(slot));
    if (e.combine) e.combine(e.operands, e.arrived);
    for (unsigned l = 0; l < 32; ++l)
        if ((e.arrived >> l & 1U) != 0) m.threads[warp * 32 + l].state = State::ready;
    if (observer && !e.combine) observer->warp_barrier(warp * 32, e.arrived);
}

void thread_ends(Machine& m) {
    m.threads[m.current].state = State::done;
    ++m.exited;
    if (m.waiting > 0) {
        fail("thread exits while %u threads of its block wait at the barrier %s:%u", m.waiting, file(m.barrier_where),
             m.barrier_where.line);
    }
    const unsigned warp = m.current / 32;
    Warp& w = m.warps[warp];
    w.exited |= 1U << (m.current % 32);
    for (std::size_t s = 0; s < w.pending.size(); ++s) {
        if (w.pending[s].arrived == (w.pending[s].mask & ~w.exited)) {
            complete(m, warp, s);
            s = static_cast<std::size_t>(-1);
        }
    }
}

void fiber_body() {
    Machine& m = machine();
    m.inside = true;
    for (;;) {
        m.quiet = false;
        try {
            m.call(m.arguments);
        } catch (const std::exception& e) {
            fail("exception in a kernel: %s", e.what());
        }
        m.quiet = true;
        thread_ends(m);
        m.threads[m.current].fiber->busy = false;
        to_scheduler(m);
    }
}

void Machine::restart(std::size_t fiber) {
    fibers[fiber].restart(stacks.stack(fiber), fiber_body);
    fibers[fiber].busy = false;
    idle.push_back(&fibers[fiber]);
}

void resume(Machine& m, unsigned t) {
    Thread& thread = m.threads[t];
    if (thread.state == State::fresh) {
        thread.fiber = m.idle.back();
        m.idle.pop_back();
        thread.fiber->busy = true;
    }
    thread.state = State::ready;
    m.current = t;
    threadIdx = thread.index;
    thread.fiber->resume();
    if (!thread.fiber->busy) m.idle.push_back(thread.fiber);
}

std::string who_waits(const Machine& m) {
    std::vector<std::pair<std::string, unsigned>> places;
    for (const Thread& t : m.threads) {
        const std::string place = t.state == State::done
                                      ? "have exited"
                                      : std::string("wait in ") + t.kind + " at " + file(t.where) + ":" + std::to_string(t.where.line);
        auto at = std::find_if(places.begin(), places.end(), [&](const auto& p) { return p.first == place; });
        if (at == places.end()) at = places.insert(places.end(), {place, 0U});
        ++at->second;
    }
    std::string all;
    for (const auto& [place, count] : places) all += (all.empty() ? "" : "; ") + std::to_string(count) + " threads " + place;
    return all;
}

void run_block(Machine& m, const std::vector<unsigned>& order) {
    m.waiting = m.exited = 0;
    m.votes = {0, 1, 0};
    const unsigned n = static_cast<unsigned>(m.threads.size());
    for (unsigned t = 0; t < n; ++t) m.threads[t].state = State::fresh;
    for (unsigned w = 0; w < m.warps.size(); ++w) {
        const unsigned present = std::min(32U, n - w * 32);
        m.warps[w].exited = present == 32 ? 0U : ~0U << present;
        m.warps[w].pending.clear();
    }
    m.copies.assign(n, {});
    ASAN_POISON_MEMORY_REGION(m.shared_base, kMaxSharedBytes);
    ASAN_UNPOISON_MEMORY_REGION(m.shared_base, m.launch->shared_bytes);
    std::memset(m.shared_base, 0xff, m.launch->shared_bytes);  // NaN in every floating type
    if (observer) observer->block_begins();
    while (m.exited < n) {
        bool progress = false;
        for (const unsigned t : order) {
            if (m.threads[t].state != State::fresh && m.threads[t].state != State::ready) continue;
            resume(m, t);
            if (m.failed) return;
            progress = true;
        }
        if (!progress && m.exited < n) {
            m.failed = true;
            m.message = "kernel " + m.launch->name + ", block " + text(blockIdx) + " hangs: " + who_waits(m);
            return;
        }
    }
}

void validate(const Launch& l) {
    const std::size_t threads = std::size_t{l.block.x} * l.block.y * l.block.z;
    if (threads == 0 || threads > kMaxThreads || l.block.z > 64)
        throw Fault("kernel " + l.name + ": a block of " + std::to_string(threads) + " threads");
    if (l.grid.x == 0 || l.grid.y == 0 || l.grid.z == 0) throw Fault("kernel " + l.name + ": an empty grid");
    if (l.grid.x > 0x7fffffffU || l.grid.y > 65535 || l.grid.z > 65535) throw Fault("kernel " + l.name + ": grid too large");
    if (l.kernel != nullptr && l.shared_bytes > allowed_shared(l.kernel))
        throw Fault("kernel " + l.name + ": " + std::to_string(l.shared_bytes) + " B of shared memory, and it was allowed " +
                    std::to_string(allowed_shared(l.kernel)) + " (cudaFuncSetAttribute)");
    if (l.shared_bytes > kMaxSharedBytes) throw Fault("kernel " + l.name + ": " + std::to_string(l.shared_bytes) + " B of shared memory");
}

}  // namespace

void run(const Launch& launch, const void* arguments, std::size_t bytes, void (*call)(const void*)) {
    static std::mutex one_launch_at_a_time;
    const std::lock_guard lock(one_launch_at_a_time);
    validate(launch);
    Machine& m = machine();
    m.launch = &launch;
    m.arguments = arguments;
    m.argument_bytes = bytes;
    m.call = call;
    m.failed = false;
    const unsigned n = launch.block.x * launch.block.y * launch.block.z;
    m.threads.assign(n, {});
    m.warps.assign((n + 31) / 32, {});
    for (unsigned t = 0; t < n; ++t) {
        m.threads[t].index = {t % launch.block.x, t / launch.block.x % launch.block.y, t / launch.block.x / launch.block.y};
    }
    gridDim = launch.grid;
    blockDim = launch.block;
    std::vector<unsigned> order(n), blocks(std::size_t{launch.grid.x} * launch.grid.y * launch.grid.z);
    std::iota(order.begin(), order.end(), 0U);
    std::iota(blocks.begin(), blocks.end(), 0U);
    std::mt19937 random(options.seed);
    if (options.seed != 0) std::shuffle(blocks.begin(), blocks.end(), random);
    if (observer) observer->launch_begins();
    for (const unsigned b : blocks) {
        blockIdx = {b % launch.grid.x, b / launch.grid.x % launch.grid.y, b / launch.grid.x / launch.grid.y};
        if (options.seed != 0) std::shuffle(order.begin(), order.end(), random);
        run_block(m, order);
        if (m.failed) {  // abandon the fibers where they stand
            for (std::size_t f = 0; f < kMaxThreads; ++f)
                if (m.fibers[f].busy) m.restart(f);
            throw Fault(m.message);
        }
    }
}

void fail(const char* format, ...) {
    Machine& m = machine();
    char what[1024];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    if (!m.inside || !m.stacks.holds(__builtin_frame_address(0))) throw Fault(what);
    m.quiet = m.failed = true;
    char all[1400];
    std::snprintf(all, sizeof all, "kernel %s, block (%u,%u,%u), thread (%u,%u,%u): %s", m.launch->name.c_str(), blockIdx.x, blockIdx.y,
                  blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z, what);
    m.message = all;
    to_scheduler(m);
    __builtin_unreachable();
}

Votes barrier(bool predicate, Where where) {
    Machine& m = machine();
    const Quiet quiet(m);
    if (left_out(where)) return {predicate, predicate, predicate};
    if (m.exited > 0) fail("barrier at %s:%u after %u threads of the block have exited", file(where), where.line, m.exited);
    if (m.waiting == 0) m.barrier_where = where;
    if (!same(m.barrier_where, where)) {
        fail("divergent barrier: others of the block wait at %s:%u, this thread at %s:%u", file(m.barrier_where), m.barrier_where.line,
             file(where), where.line);
    }
    m.votes.count += predicate ? 1 : 0;
    m.votes.all &= predicate ? 1 : 0;
    m.votes.any |= predicate ? 1 : 0;
    Thread& self = m.threads[m.current];
    self.kind = "__syncthreads";
    self.where = where;
    if (++m.waiting == m.threads.size()) {
        m.waiting = 0;
        m.votes_result = m.votes;
        m.votes = {0, 1, 0};
        for (Thread& t : m.threads) t.state = State::ready;
        if (observer) observer->block_barrier();
    } else {
        self.state = State::at_barrier;
        to_scheduler(m);
    }
    return m.votes_result;
}

void warp_collective(unsigned mask, const char* kind, void* operand, Combine combine, Where where) {
    Machine& m = machine();
    const Quiet quiet(m);
    if (combine == nullptr && left_out(where)) return;
    const unsigned warp = m.current / 32, bit = 1U << (m.current % 32);
    Warp& w = m.warps[warp];
    if ((mask & bit) == 0)
        fail("%s at %s:%u: the caller's lane %u is not in its mask %08x", kind, file(where), where.line, m.current % 32, mask);
    auto at = std::find_if(w.pending.begin(), w.pending.end(), [&](const Exchange& e) { return (e.mask & mask) != 0; });
    if (at == w.pending.end()) {
        at = w.pending.insert(at, Exchange{mask, 0, kind, combine, where, {}});
    } else if (at->mask != mask || at->combine != combine) {
        fail("%s at %s:%u meets %s of the same warp at %s:%u with another mask or operation", kind, file(where), where.line, at->kind,
             file(at->where), at->where.line);
    }
    at->arrived |= bit;
    at->operands[m.current % 32] = operand;
    if (at->arrived == (mask & ~w.exited)) return complete(m, warp, static_cast<std::size_t>(at - w.pending.begin()));
    Thread& self = m.threads[m.current];
    self.state = State::at_warp;
    self.kind = kind;
    self.where = where;
    to_scheduler(m);
}

void copy_later(const Copy& copy) {
    const Quiet quiet(machine());
    machine().copies[machine().current].push_back({copy, false});
}

void commit_copies() {
    const Quiet quiet(machine());
    machine().copies[machine().current].push_back({{}, true});
}

bool next_copy(std::size_t batches_left, Copy& copy, Where where) {
    const Quiet quiet(machine());
    if (left_out(where)) return false;
    auto& all = machine().copies[machine().current];
    while (static_cast<std::size_t>(std::ranges::count_if(all, &Pending::ends_batch)) > batches_left) {
        const Pending first = all.front();
        all.pop_front();
        copy = first.copy;
        if (!first.ends_batch) return true;
    }
    return false;
}

unsigned lane() {
    return machine().current % 32;
}
unsigned linear_thread() {
    return machine().current;
}
unsigned exited_lanes() {
    return machine().warps[machine().current / 32].exited;
}
void* dynamic_shared() {
    return machine().shared_base;
}
std::size_t dynamic_shared_bytes() {
    return machine().launch ? machine().launch->shared_bytes : 0;
}
// Other threads of the process run instrumented host code at the same time: only who stands on a fiber's stack is in a kernel.
bool inside_kernel() {
    return machine().inside && !machine().quiet && machine().stacks.holds(__builtin_frame_address(0));
}

bool in_parameter_space(const void* address) {
    const char *p = static_cast<const char*>(address), *low = static_cast<const char*>(machine().arguments);
    return p >= low && p < low + machine().argument_bytes;
}

bool on_own_stack(const void* address) {
    return machine().threads[machine().current].fiber->holds(address);
}
bool on_any_stack(const void* address) {
    return machine().stacks.holds(address);
}

}  // namespace emu
