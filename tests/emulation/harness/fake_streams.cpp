/// Streams of the stand-in devices: queues, the order in which they run, and the check that accesses are ordered.
#include "cuda_emulation.hpp"
#include "fake_state.hpp"
#include "injection.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>
#include <thread>

namespace emu {
namespace {

template <class T>
void from_environment(const char* name, T& value) {
    if (const char* text = of_own_rank(name)) value = static_cast<T>(std::strtod(text, nullptr));
}

DeviceOptions options_from_environment() {
    DeviceOptions o;
    if (const char* order = std::getenv("EMU_ORDER")) {
        if (std::strcmp(order, "as_submitted") == 0) o.order = Order::as_submitted;
        if (std::strcmp(order, "random") == 0) o.order = Order::random;
        if (std::strcmp(order, "first_stream_first") == 0) o.order = Order::first_stream_first;
    }
    from_environment("EMU_SEED", o.seed);
    from_environment("EMU_MEMORY_BYTES", o.memory_bytes);
    from_environment("EMU_HANG_SECONDS", o.hang_seconds);
    from_environment("EMU_DEVICES", o.devices);
    from_environment("EMU_CAPABILITY", o.capability);
    from_environment("EMU_MIG", o.mig);
    from_environment("EMU_DRIVER", o.driver);
    from_environment("EMU_CUDNN", o.cudnn);
    from_environment("EMU_GUARD", o.guard_memory);
    from_environment("EMU_CHECK_ORDER", o.check_order);
    o.alone_seconds = 1;
    from_environment("EMU_ALONE_SECONDS", o.alone_seconds);
    return o;
}

}  // namespace

DeviceOptions device_options = options_from_environment();

Devices& devices() {
    static Devices d;
    return d;
}

bool join(Clock& into, const Clock& from) {
    bool news = false;
    if (into.size() < from.size()) into.resize(from.size());
    for (std::size_t i = 0; i < from.size(); ++i) {
        news |= from[i] > into[i];
        into[i] = std::max(into[i], from[i]);
    }
    return news;
}

void check_access(unsigned stream, const std::shared_ptr<const Clock>& clock, const std::string& name, Range r, bool found_late) {
    auto* found = find_memory(r.address);
    if (found == nullptr) return;  // pageable host memory
    auto& [base, a] = *found;
    const char *begin = static_cast<const char*>(r.address), *end = begin + std::max<std::size_t>(r.bytes, 1);
    std::string what = "buffer of " + std::to_string(a.bytes) + " B";
    auto part = a.parts.upper_bound(begin);
    if (part != a.parts.begin() && begin < std::prev(part)->first + std::prev(part)->second.first) {
        --part;
        what = part->second.second;
        if (r.bytes == 0) end = part->first + part->second.first;
    }
    if (a.freed && !found_late) throw Fault(name + " uses a " + what + " after it was freed");
    if (end > base + a.bytes) throw Fault(name + " reaches beyond the " + what);
    const unsigned long when = at(*clock, stream);
    for (const Past& p : a.past) {
        if (p.end <= begin || end <= p.begin || !(p.writes || r.writes) || !device_options.check_order) continue;
        if (at(*clock, p.stream) >= p.when() || (found_late && at(*p.clock, stream) >= when)) continue;
        throw Fault((r.writes ? "write by " : "read by ") + name + " on stream " + std::to_string(stream) + " is not ordered after the " +
                    (p.writes ? "write by " : "read by ") + p.name + " on stream " + std::to_string(p.stream) + ": " + what +
                    ", at its byte " + std::to_string(std::max(begin, p.begin) - base));
    }
    std::erase_if(a.past, [&](const Past& p) {  // who follows this read follows that one
        return p.stream == stream && !p.writes && !r.writes && begin <= p.begin && p.end <= end;
    });
    a.past.push_back({stream, clock, begin, end, r.writes, name});
}

/// What the host has waited for precedes all that is submitted from now on. While operations are queued, their accesses may not be known
/// yet.
static void forget_what_is_over() {
    Devices& d = devices();
    if (!std::ranges::all_of(d.streams, [](const auto& s) { return s->idle(); })) return;
    for (auto& [base, a] : d.memory) std::erase_if(a.past, [&](const Past& p) { return at(d.host, p.stream) >= p.when(); });
}

void enqueue(cudaStream_t stream, std::string name, const std::vector<Range>& ranges, std::function<bool()> step, bool on_host) {
    enqueue(stream, std::move(name), ranges, std::move(step), on_host, true);
}

static void go_on_alone(const std::stop_token& over);

void enqueue(cudaStream_t stream, std::string name, const std::vector<Range>& ranges, std::function<bool()> step, bool on_host,
             bool does_work) {
    Devices& d = devices();
    const std::lock_guard lock(d.mutex);
    if (stream == nullptr) {
        if (!device_options.default_stream) throw Fault(name + " on the default stream, which would serialize everything");
        const OpenMemory open;
        step();
        return;
    }
    forget_what_is_over();
    join(stream->clock, d.host);
    if (stream->clock.size() <= stream->id) stream->clock.resize(stream->id + 1);
    stream->clock[stream->id] += does_work ? 1 : 0;
    const auto clock = std::make_shared<const Clock>(stream->clock);
    for (const Range& r : ranges) check_access(stream->id, clock, name, r);
    stream->queue.push_back({std::move(name), std::move(step), ++d.submitted, on_host, clock});
    d.asked = std::chrono::steady_clock::now();
    if (device_options.alone_seconds > 0 && !d.alone.joinable()) d.alone = std::jthread(go_on_alone);
}

namespace {

thread_local const Operation* current_operation = nullptr;
thread_local unsigned current_stream = 0;

}  // namespace

void check_found(const std::string& name, Range range) {
    check_access(current_stream, current_operation->clock, name, range, true);
}

namespace {

/// The lock is held once; a function of the program runs without it, and without access to device memory.
bool run_step(CUstream_st& s, const Operation& operation) {
    if (!operation.on_host) {
        current_operation = &operation;
        current_stream = s.id;
        return operation.step();
    }
    struct Unlocked {
        CUstream_st& stream;
        explicit Unlocked(CUstream_st& s) : stream(s) {
            stream.running = true;
            close_memory();
            devices().mutex.unlock();
        }
        ~Unlocked() {
            devices().mutex.lock();
            open_memory();
            stream.running = false;
        }
        Unlocked(const Unlocked&) = delete;
    };
    const Unlocked unlocked(s);
    const InHostFunction here;
    return operation.step();
}

/// As on a device that has failed: nothing of what is queued runs, else it would write into host memory that is gone by then.
void drop_work(unsigned device) {
    for (auto& s : devices().streams)
        if (s->device == device) s->queue.clear();
    for (auto& e : devices().events) e->reached = e->wanted;
}

/// Runs one step of one stream's first operation, streams tried in the chosen order. False: nothing could move.
bool advance(unsigned device) {
    Devices& d = devices();
    std::vector<CUstream_st*> ready;
    for (auto& s : d.streams)
        if (s->device == device && !s->queue.empty() && !s->running) ready.push_back(s.get());
    if (device_options.order == Order::as_submitted) std::ranges::sort(ready, {}, [](auto* s) { return s->queue.front().submitted; });
    if (device_options.order == Order::last_stream_first) std::ranges::reverse(ready);
    if (device_options.order == Order::random) std::ranges::shuffle(ready, d.random);
    for (CUstream_st* s : ready) {
        if (s->queue.empty() || s->running) continue;       // another thread was faster while a host function ran
        Operation operation = std::move(s->queue.front());  // step() may throw: the operation is gone then
        s->queue.pop_front();
        try {
            if (run_step(*s, operation)) return true;
        } catch (...) {
            drop_work(device);
            throw;
        }
        s->queue.push_front(std::move(operation));
    }
    return false;
}

void submit_kernel(cudaStream_t stream, std::string name, const Access* accesses, std::size_t count, std::function<void()> run) {
    if (call_fails("kernel")) {
        result(cudaErrorLaunchFailure);
        return;
    }
    if (call_fails("kernel out of memory")) {
        result(cudaErrorMemoryAllocation);
        return;
    }
    std::vector<Range> ranges;
    for (std::size_t i = 0; i < count; ++i)
        if (accesses[i].address != nullptr) ranges.push_back({accesses[i].address, 0, accesses[i].writes});
    enqueue(stream, name, ranges, [run = std::move(run), name, on_stream = stream != nullptr] {
        run();
        // the checked build knows every byte that was touched: arenas need no names, and pointers may hide in structs
        if (observer != nullptr && on_stream)
            for (const Touched& t : observer->touched()) check_found(name, {t.begin, static_cast<std::size_t>(t.end - t.begin), t.writes});
        return true;
    });
}
[[maybe_unused]] const bool installed = (submit = submit_kernel, true);

/// One operation of any device, where the host is away.
bool advance_alone() {
    if (device_options.alone_seconds <= 0) return false;
    Devices& d = devices();
    const std::lock_guard lock(d.mutex);
    if (std::chrono::steady_clock::now() - d.asked < std::chrono::duration<double>(device_options.alone_seconds)) return false;
    d.moved.clear();
    const OpenMemory open;
    std::set<unsigned> all;
    for (const auto& s : d.streams) all.insert(s->device);
    return std::ranges::any_of(all, advance);
}

std::string what_hangs(unsigned device) {
    std::string all;
    for (const auto& s : devices().streams)
        if (s->device == device && !s->idle())
            all += " stream " + std::to_string(s->id) + " at " + (s->running ? "a host function" : s->queue.front().name) + ";";
    return all;
}

}  // namespace

/// A Fault ends the process here.
static void go_on_alone(const std::stop_token& over) {
    while (!over.stop_requested())
        if (!advance_alone())
            std::this_thread::sleep_for(std::chrono::duration<double>(std::clamp(device_options.alone_seconds / 2, 1e-6, 0.02)));
}

void wait_until(unsigned device, const std::function<bool()>& done) {
    Devices& d = devices();
    auto last = std::chrono::steady_clock::now();
    for (;;) {
        bool running = false;
        {
            const std::lock_guard lock(d.mutex);
            if (done()) return;
            const OpenMemory open;
            bool moved = false;
            while (!done() && advance(device)) moved = true;
            d.asked = std::chrono::steady_clock::now();
            if (done()) return;
            running = std::ranges::any_of(d.streams, [](const auto& s) { return s->running; });
            if (moved || running) last = std::chrono::steady_clock::now();
            if (std::chrono::steady_clock::now() - last > std::chrono::duration<double>(device_options.hang_seconds))
                throw Fault("the host waits for device " + std::to_string(device) + ", which hangs:" + what_hangs(device));
        }
        std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
}

/// Who asks again and again must not do so without end either.
void pass_time(unsigned device) {
    Devices& d = devices();
    const std::lock_guard lock(d.mutex);
    const OpenMemory open;
    const auto now = d.asked = std::chrono::steady_clock::now();
    auto& last = d.moved.try_emplace(device, now).first->second;
    const auto busy = [device](const auto& s) { return s->device == device && !s->queue.empty() && !s->running; };
    if (advance(device) || std::ranges::none_of(d.streams, busy)) {
        last = std::chrono::steady_clock::now();
    } else if (now - last > std::chrono::duration<double>(device_options.hang_seconds)) {
        throw Fault("the host asks for device " + std::to_string(device) + ", which hangs:" + what_hangs(device));
    }
}

void reset_devices() {
    Devices& d = devices();
    const std::lock_guard lock(d.mutex);
    forget_memory();
    d.streams.clear();
    d.events.clear();
    d.host.clear();
    d.used.clear();
    d.moved.clear();
    d.allocations = 0;
    d.random.seed(device_options.seed);
}

}  // namespace emu
