/// Memory, copies, streams and host functions of the GPU.
#include "both_backends.hpp"
#include "harness/injection.hpp"

#include <cuda_runtime.h>
#include <numeric>

namespace sherd::tests {
namespace {

class Streams : public testing::TestWithParam<emu::Order> {
  protected:
    void SetUp() override {
        emu::device_options = {};
        emu::device_options.order = GetParam();
        emu::reset_devices();
    }
};
INSTANTIATE_TEST_SUITE_P(Orders, Streams, testing::Values(emu::Order::as_submitted, emu::Order::last_stream_first, emu::Order::random),
                         [](const auto& p) { return "order" + std::to_string(static_cast<int>(p.param)); });

std::string failure_of(const std::function<void()>& work) {
    try {
        work();
    } catch (const DeviceError& error) {
        return error.what();
    }
    return "";
}

void expect_holds(const std::string& text, const std::vector<std::string>& parts) {
    for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
}

std::vector<std::int32_t> counting(std::size_t n) {
    std::vector<std::int32_t> values(n);
    std::iota(values.begin(), values.end(), 1);
    return values;
}

/// Sizes around the staging memory, up and down again, with other work of the stream between.
TEST_P(Streams, CopiesOfPlainHostMemoryKeepTheirOrder) {
    const auto backend = make_cuda_backend({});
    const auto stream = backend->make_stream("compute");
    for (const std::size_t n : {1u, 1000u, 524288u, 524289u, 3000000u}) {
        const DeviceMemory a(*backend, n * 4, "a"), b(*backend, n * 4, "b");
        const auto first = counting(n), second = std::vector<std::int32_t>(n, -7);
        std::vector<std::int32_t> back(n, 0), back2(n, 0);
        backend->copy_to_device(*stream, a.data(), first.data(), n * 4);
        backend->copy(*stream, b.data(), a.data(), n * 4);
        backend->copy_to_device(*stream, a.data(), second.data(), n * 4);
        backend->copy_to_host(*stream, back.data(), b.data(), n * 4);
        backend->copy_to_host(*stream, back2.data(), a.data(), n * 4);
        backend->synchronize(*stream);
        ASSERT_EQ(back, first) << n;
        ASSERT_EQ(back2, second) << n;
    }
}

TEST_P(Streams, ManySmallCopiesNeedNoWait) {
    const auto backend = make_cuda_backend({});
    const auto stream = backend->make_stream("compute");
    const DeviceMemory a(*backend, 4 * 64, "a");
    emu::forget_calls();
    for (std::int32_t i = 0; i < 64; ++i) backend->copy_to_device(*stream, a.as<std::int32_t>() + i, &i, 4);
    const auto calls = emu::calls();
    for (const char* waits : {"cudaStreamSynchronize", "cudaEventSynchronize", "cudaStreamQuery", "cudaEventQuery"})
        EXPECT_EQ(calls.contains(waits) ? calls.at(waits) : 0, 0) << waits;
    std::vector<std::int32_t> back(64);
    backend->copy_to_host(*stream, back.data(), a.data(), 256);
    backend->synchronize(*stream);
    for (std::int32_t i = 0; i < 64; ++i) EXPECT_EQ(back[static_cast<std::size_t>(i)], i);
}

TEST_P(Streams, PinnedMemoryIsReadInStreamOrder) {
    const auto backend = make_cuda_backend({});
    const auto stream = backend->make_stream("communication");
    const HostMemory pinned(*backend, 400, "pinned");
    const DeviceMemory a(*backend, 400, "a");
    auto* values = pinned.as<std::int32_t>();
    std::fill_n(values, 100, 1);
    backend->host_task(*stream, [values] { std::iota(values, values + 100, 5); });
    backend->copy_to_device(*stream, a.data(), values, 400);
    backend->host_task(*stream, [values] { std::fill_n(values, 100, -1); });
    std::vector<std::int32_t> back(100);
    backend->copy_to_host(*stream, back.data(), a.data(), 400);
    backend->synchronize(*stream);
    EXPECT_EQ(back[0], 5);
    EXPECT_EQ(back[99], 104);
}

TEST_P(Streams, EventsOrderThem) {
    const auto backend = make_cuda_backend({});
    const auto compute = backend->make_stream("compute"), communication = backend->make_stream("communication");
    const auto event = backend->make_event();
    const DeviceMemory a(*backend, 400, "a"), b(*backend, 400, "b");
    const auto values = counting(100);
    backend->wait(*communication, *event);  // never recorded: waits for nothing
    backend->copy_to_device(*compute, a.data(), values.data(), 400);
    backend->record(*event, *compute);
    backend->wait(*communication, *event);
    backend->copy(*communication, b.data(), a.data(), 400);
    std::vector<std::int32_t> back(100);
    backend->copy_to_host(*communication, back.data(), b.data(), 400);
    backend->synchronize(*communication);
    EXPECT_EQ(back, values);
}

TEST_P(Streams, CarryTheFirstErrorOfHostFunctionsToSynchronize) {
    const auto backend = make_cuda_backend({});
    const auto stream = backend->make_stream("communication");
    bool skipped = true;
    backend->host_task(*stream, [] { throw InputError("the first"); });
    backend->host_task(*stream, [&] { skipped = false; });
    backend->host_task(*stream, [] { throw std::runtime_error("the second"); });
    try {
        backend->synchronize(*stream);
        FAIL() << "no error";
    } catch (const InputError& error) {
        EXPECT_STREQ(error.what(), "the first");
    }
    EXPECT_TRUE(skipped);
    bool again = false;
    backend->host_task(*stream, [&] { again = true; });
    backend->synchronize(*stream);
    EXPECT_TRUE(again);
}

TEST_P(Streams, FinishTheirWorkBeforeTheyGo) {
    const auto backend = make_cuda_backend({});
    int count = 0;
    {
        const auto stream = backend->make_stream("communication");
        for (int i = 0; i < 20; ++i) backend->host_task(*stream, [&] { ++count; });
    }
    EXPECT_EQ(count, 20);
}

class Memory : public testing::Test {
  protected:
    void SetUp() override {
        emu::device_options = {};
        emu::device_options.memory_bytes = 1u << 30;
        emu::reset_devices();
    }
};

TEST_F(Memory, WhereItEndsTheErrorSaysForWhatAndWhoHoldsIt) {
    const auto backend = make_cuda_backend({});
    const DeviceMemory weights(*backend, 300u << 20, "weights"), moments(*backend, 600u << 20, "exp_avg"),
        more(*backend, 10u << 20, "weights");
    EXPECT_THROW(DeviceMemory(*backend, 200u << 20, "activations"), OutOfMemoryError);
    const std::string text = failure_of([&] { const DeviceMemory none(*backend, 200u << 20, "activations"); });
    expect_holds(text, {"cannot allocate 200.0 MiB for activations", "GPU 0", "rank 0", "114.0 MiB of 1.0 GiB are free",
                        "exp_avg 600.0 MiB, weights 310.0 MiB"});
    const DeviceMemory fits(*backend, 100u << 20, "activations");
    EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "a refusal must not be found again by the next launch";
}

TEST_F(Memory, ThatEndsInACallIsReportedWithAllThatWasTaken) {
    const auto backend = make_cuda_backend({});
    backend->reserve(100u << 20, "all that is planned");
    const DeviceMemory weights(*backend, 60u << 20, "weights"), beside(*backend, 80u << 20, "unplanned");
    const auto stream = backend->make_stream("communication");
    emu::fail_call("kernel out of memory", 1);
    const std::string text = failure_of([&] {
        try {
            backend->add(*stream, {weights.data(), DType::f32, 1, 4}, {weights.data(), DType::f32, 1, 4}, true);
        } catch (const CallOutOfMemoryError& error) {
            throw DeviceError("{}. {}", error.what(), backend->memory_report());
        }
    });
    emu::fail_call("", 0);
    expect_holds(text, {"the launch of", "out of memory (cudaErrorMemoryAllocation)", "844.0 MiB of 1.0 GiB are free", "holds 180.0 MiB",
                        "unplanned 80.0 MiB, weights 60.0 MiB, planned and not in use 39.9 MiB"});
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(Memory, ALimitHoldsThoughThereIsMore) {
    const auto backend = make_cuda_backend({.index = 0, .memory_limit = 100u << 20, .tf32 = false});
    const DeviceMemory weights(*backend, 90u << 20, "weights");
    expect_holds(failure_of([&] { const DeviceMemory none(*backend, 11u << 20, "activations"); }),
                 {"device.memory_limit 100.0 MiB", "weights 90.0 MiB"});
    EXPECT_NO_THROW(DeviceMemory(*backend, 9u << 20, "activations"));
}

TEST_F(Memory, ThatIsPlannedIsOneBlock) {
    const auto backend = make_cuda_backend({.index = 0, .memory_limit = 100u << 20, .tf32 = false});
    const std::uint64_t before = backend->peak_memory_bytes();
    const long blocks = emu::device_allocations();
    expect_holds(failure_of([&] { backend->reserve(101u << 20, "all that is planned"); }),
                 {"cannot allocate 101.0 MiB for all that is planned", "device.memory_limit 100.0 MiB", "This rank holds 0 bytes"});
    backend->reserve(80u << 20, "all that is planned");
    EXPECT_EQ(backend->peak_memory_bytes(), before + (80u << 20));
    const DeviceMemory weights(*backend, (50u << 20) - 3, "weights"), moments(*backend, 30u << 20, "exp_avg");
    EXPECT_EQ(emu::device_allocations(), blocks + 1);
    EXPECT_EQ(moments.as<char>() - weights.as<char>(), 50 << 20);
    EXPECT_EQ(backend->available_memory_bytes(), (1024u - 80) << 20) << "the arena counts as taken";
    expect_holds(failure_of([&] { const DeviceMemory none(*backend, 21u << 20, "activations"); }),
                 {"cannot allocate 21.0 MiB for activations", "weights 50.0 MiB, exp_avg 30.0 MiB"});
    {
        const DeviceMemory beside(*backend, 1u << 20, "activations");
        EXPECT_EQ(emu::device_allocations(), blocks + 2);
    }
    EXPECT_EQ(backend->available_memory_bytes(), (1024u - 80) << 20);
    EXPECT_THROW(backend->reserve(1, "more"), DeviceError);
}

TEST_F(Memory, WhatTheDriverShowsIsReported) {
    const auto backend = make_cuda_backend({});
    const std::uint64_t before = backend->peak_memory_bytes();
    {
        const DeviceMemory weights(*backend, 300u << 20, "weights");
        EXPECT_EQ(backend->peak_memory_bytes(), before + (300u << 20));
    }
    EXPECT_EQ(backend->peak_memory_bytes(), before + (300u << 20)) << "the peak stays";
    EXPECT_FALSE(backend->host_reads_memory());
}

TEST_F(Memory, IsNotAllocatedByOperations) {
    Both both;
    const Twin x = both.random(16, 32, DType::f32), w = both.random(8, 32, DType::f32), y = both.random(16, 8, DType::f32),
               bias = both.random(1, 8, DType::f32);
    const long before = emu::device_allocations();
    Backend& b = *both.gpu.backend;
    Stream& s = *both.gpu.stream;
    b.linear_forward(s, y.gpu, x.gpu, w.gpu, bias.gpu);
    b.bias_backward(s, bias.floats(true), y.gpu);
    b.sum_squares(s, static_cast<double*>(w.gpu.data), x.floats(true), 512);
    b.synchronize(s);
    EXPECT_EQ(emu::device_allocations(), before);
}

TEST(GpusFound, AreTheVisibleOnesWithWhatTheyAre) {
    emu::device_options = {};
    emu::device_options.devices = 3;
    emu::device_options.capability = 80;
    emu::reset_devices();
    const Gpus gpus = find_gpus();
    ASSERT_EQ(gpus.list.size(), 3u);
    EXPECT_EQ(gpus.list[2].index, 2);
    EXPECT_NE(gpus.list[0].bus_id, gpus.list[1].bus_id);
    EXPECT_EQ(gpus.list[0].major, 8);
    EXPECT_EQ(gpus.list[0].memory_bytes, emu::device_options.memory_bytes);
    EXPECT_NE(gpus.list[0].driver.find("CUDA 13.0"), std::string::npos) << gpus.list[0].driver;
    const auto backend = make_cuda_backend({.index = 2, .memory_limit = 0, .tf32 = false});
    expect_holds(backend->description(), {"cuda: ", "sm_80", "GiB"});
    EXPECT_TRUE(backend->has_native(DType::bf16));
    expect_holds(failure_of([] { (void)make_cuda_backend({.index = 3, .memory_limit = 0, .tf32 = false}); }),
                 {"no GPU 3", "3 are visible"});
}

TEST(GpusFound, AbsentOrTooOldOnesAreExplained) {
    emu::device_options = {};
    emu::device_options.devices = 0;
    EXPECT_NE(find_gpus().why_none.find("shows no GPU"), std::string::npos);
    emu::device_options.driver = 0;
    EXPECT_NE(find_gpus().why_none.find("driver"), std::string::npos);
    emu::device_options = {};
    emu::device_options.capability = 70;
    expect_holds(failure_of([] { (void)make_cuda_backend({}); }), {"sm_70", "CUDA_ARCHS='75 80 90 70'", "CUDA 12"});
    emu::device_options.capability = 75;
    const auto backend = make_cuda_backend({});
    EXPECT_FALSE(backend->has_native(DType::bf16));
    EXPECT_FALSE(backend->can_compute(DType::bf16));
    EXPECT_TRUE(backend->can_compute(DType::f16));
    emu::device_options = {};
}

}  // namespace
}  // namespace sherd::tests
