/// Streams, events, errors and memory of the CPU.
#include "backend_testing.hpp"

#include "sherd/backend/backend.hpp"
#include "sherd/runtime/error.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <omp.h>
#include <stdexcept>
#include <sys/resource.h>
#include <thread>
#include <xmmintrin.h>

namespace sherd::testing {
namespace {

TEST(Streams, KeepTheirOrder) {
    for (const auto order : {StreamOrder::as_enqueued, StreamOrder::delayed}) {
        Device device(1, order);
        std::vector<int> seen;
        for (int i = 0; i < 100; ++i) device->host_task(*device.stream, [&seen, i] { seen.push_back(i); });
        device->synchronize(*device.stream);
        ASSERT_EQ(seen.size(), 100u);
        EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
    }
}

TEST(Streams, ReturnAtOnce) {
    Device device;
    std::atomic<bool> go{false}, ran{false};
    device->host_task(*device.stream, [&] {
        while (!go) std::this_thread::yield();
        ran = true;
    });
    EXPECT_FALSE(ran);  // enqueued, and the host goes on
    go = true;
    device->synchronize(*device.stream);
    EXPECT_TRUE(ran);
}

/// A producer on one stream and a consumer on another, 50 times; how often the consumer saw the old value.
int stale_reads(bool with_event) {
    const auto backend = make_cpu_backend(1, StreamOrder::delayed);
    const auto producer = backend->make_stream("compute"), consumer = backend->make_stream("communication");
    const auto written = backend->make_event(), read = backend->make_event();
    std::atomic<int> value{0}, stale{0};
    for (int i = 1; i <= 50; ++i) {
        backend->wait(*producer, *read);  // never recorded in the first round: waits for nothing
        backend->host_task(*producer, [&value, i] { value = i; });
        backend->record(*written, *producer);
        if (with_event) backend->wait(*consumer, *written);
        backend->host_task(*consumer, [&value, &stale, i] { stale += value != i ? 1 : 0; });
        backend->record(*read, *consumer);
    }
    backend->synchronize(*producer);
    backend->synchronize(*consumer);
    return stale;
}

TEST(Events, OrderStreams) {
    EXPECT_EQ(stale_reads(true), 0);
}

TEST(Events, MissingWaitShowsUnderDelays) {
    EXPECT_GT(stale_reads(false), 0);
}

TEST(Events, RecordedAgainMovesThePoint) {
    const auto backend = make_cpu_backend(1);
    const auto a = backend->make_stream("compute"), b = backend->make_stream("copy");
    const auto event = backend->make_event();
    std::atomic<bool> go{false}, late{false};
    backend->record(*event, *a);
    backend->host_task(*a, [&] {
        while (!go) std::this_thread::yield();
        late = true;
    });
    backend->wait(*b, *event);  // of the first point: does not wait for the task
    bool late_at_first = true, late_at_second = false;
    backend->host_task(*b, [&] { late_at_first = late; });
    backend->synchronize(*b);
    EXPECT_FALSE(late_at_first);
    backend->record(*event, *a);
    backend->wait(*b, *event);
    backend->host_task(*b, [&] { late_at_second = late; });
    go = true;
    backend->synchronize(*b);
    EXPECT_TRUE(late_at_second);
}

TEST(Events, OutliveTheirStream) {
    const auto backend = make_cpu_backend(1);
    const auto event = backend->make_event();
    const auto other = backend->make_stream("compute");
    {
        const auto gone = backend->make_stream("copy");
        backend->host_task(*gone, [] {});
        backend->record(*event, *gone);
    }
    backend->wait(*other, *event);
    EXPECT_NO_THROW(backend->synchronize(*other));
}

TEST(Streams, CarryTheFirstErrorToSynchronize) {
    Device device;
    bool skipped = true;
    device->host_task(*device.stream, [] { throw InputError("the first"); });
    device->host_task(*device.stream, [&] { skipped = false; });
    device->host_task(*device.stream, [] { throw std::runtime_error("the second"); });
    try {
        device->synchronize(*device.stream);
        FAIL() << "no error";
    } catch (const InputError& error) {
        EXPECT_STREQ(error.what(), "the first");
    }
    EXPECT_TRUE(skipped);
    bool again = false;
    device->host_task(*device.stream, [&] { again = true; });
    EXPECT_NO_THROW(device->synchronize(*device.stream));
    EXPECT_TRUE(again);
}

TEST(Streams, FinishTheirWorkBeforeTheyGo) {
    const auto backend = make_cpu_backend(1, StreamOrder::delayed);
    int count = 0;
    {
        const auto stream = backend->make_stream("compute");
        for (int i = 0; i < 20; ++i) backend->host_task(*stream, [&] { ++count; });
    }
    EXPECT_EQ(count, 20);
}

TEST(Streams, ComputeWithAllThreadsAndTheSideOnesWithOne) {
    const auto backend = make_cpu_backend(3);
    for (const auto& [name, threads] : {std::pair{"compute", 3}, {"communication", 1}, {"copy", 1}}) {
        const auto stream = backend->make_stream(name);
        int team = 0;
        backend->host_task(*stream, [&] {
#pragma omp parallel
#pragma omp single
            team = omp_get_num_threads();
        });
        backend->synchronize(*stream);
        EXPECT_EQ(team, threads) << name;
    }
}

TEST(Streams, FlushDenormalsOnEveryThread) {
    Device device(3);
    std::atomic<int> flushing{0}, results{0};
    device->host_task(*device.stream, [&] {
#pragma omp parallel
        {
            flushing += (_mm_getcsr() & 0x8040u) == 0x8040u ? 1 : 0;
            const volatile float tiny = std::numeric_limits<float>::min();
            const volatile float half = tiny * 0.5f;
            results += half == 0.0f ? 1 : 0;
        }
    });
    device->synchronize(*device.stream);
    EXPECT_EQ(flushing, 3);
    EXPECT_EQ(results, 3);
}

double processor_seconds() {
    rusage usage{};
    EXPECT_EQ(::getrusage(RUSAGE_SELF, &usage), 0);
    const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST(Streams, SleepWhileTheyHaveNothingToDo) {
    const int threads = omp_get_num_procs();
    if (threads < 2) GTEST_SKIP() << "one core: OpenMP has no second thread";
    if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) GTEST_SKIP() << "decided by the environment";
    Device device(threads);
    const double before = processor_seconds();
    for (int i = 0; i < 20; ++i) {
        device->host_task(*device.stream, [] {
#pragma omp parallel
            std::this_thread::yield();
        });
        device->synchronize(*device.stream);
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_LT(processor_seconds() - before, 0.06);  // spinning takes 0.15 s and more
}

TEST(Memory, IsAlignedCopiedAndZeroed) {
    Device device;
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{1000}, std::size_t{9} << 20}) {
        DeviceMemory a(*device.backend, bytes, "a"), b(*device.backend, bytes, "b");
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.data()) % 256, 0u);
        std::vector<unsigned char> in(bytes, 7), out(bytes, 1);
        device->copy_to_device(*device.stream, a.data(), in.data(), bytes);
        device->copy(*device.stream, b.data(), a.data(), bytes);
        device->copy_to_host(*device.stream, out.data(), b.data(), bytes);
        device->synchronize(*device.stream);
        EXPECT_EQ(in, out);
        device->zero(*device.stream, b.data(), bytes);
        device->copy_to_host(*device.stream, out.data(), b.data(), bytes);
        device->synchronize(*device.stream);
        EXPECT_EQ(out, std::vector<unsigned char>(bytes, 0));
        DeviceMemory moved(std::move(a));
        EXPECT_EQ(a.data(), nullptr);
        b = std::move(moved);
        EXPECT_EQ(b.bytes(), bytes);
    }
    EXPECT_EQ(DeviceMemory(*device.backend, 0, "nothing").data(), nullptr);
}

TEST(Memory, WhatCannotFitIsRefusedWithPurposeAndSizes) {
    Device device;
    try {
        DeviceMemory all(*device.backend, std::size_t{1} << 50, "activations of block 3");
        FAIL() << "granted";
    } catch (const DeviceError& error) {
        const std::string text = error.what();
        EXPECT_NE(text.find("activations of block 3"), std::string::npos) << text;
        EXPECT_NE(text.find("1125899906842624 bytes"), std::string::npos) << text;
        EXPECT_NE(text.find("available"), std::string::npos) << text;
    }
}

TEST(Memory, PeakFollowsWhatIsTouched) {
    Device device;
    const auto before = device->peak_memory_bytes();
    ASSERT_GT(before, 0u);
    const std::size_t bytes = std::size_t{300} << 20;
    {
        DeviceMemory block(*device.backend, bytes, "a test");
        device->zero(*device.stream, block.data(), bytes);
        device->synchronize(*device.stream);
    }
    EXPECT_GE(device->peak_memory_bytes(), bytes);
}

TEST(Backend, DescribesTheMachine) {
    const std::string text = make_cpu_backend(2)->description();
    EXPECT_EQ(text.rfind("cpu: ", 0), 0u);
    EXPECT_NE(text.find(", 2 threads, "), std::string::npos) << text;
    EXPECT_TRUE(make_cpu_backend(1)->has_native(DType::f32));
}

}  // namespace
}  // namespace sherd::testing
