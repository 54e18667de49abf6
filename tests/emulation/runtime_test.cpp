// Host code of a CUDA backend against the stand-ins of libcudart and libnccl: right code passes in every order, wrong code is
// named.
#include "harness/execution.hpp"
#include "harness/fake_device.hpp"
#include "harness/injection.hpp"
#include "runtime_kernels.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cuda_runtime.h>
#include <nccl.h>
#include <numeric>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

constexpr int kN = 300;
constexpr std::size_t kBytes = kN * sizeof(float);

struct Rank {  // what a backend owns: a compute and a communication stream, two buffers
    cudaStream_t compute, communication;
    cudaEvent_t ready;
    float *a, *b;
    std::vector<float> in = std::vector<float>(kN), out = std::vector<float>(kN, -1.0F);
    Rank() {
        cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking);
        cudaStreamCreateWithFlags(&communication, cudaStreamNonBlocking);
        cudaEventCreateWithFlags(&ready, cudaEventDisableTiming);
        cudaMalloc(reinterpret_cast<void**>(&a), kBytes);
        cudaMalloc(reinterpret_cast<void**>(&b), kBytes);
        std::iota(in.begin(), in.end(), 0.0F);
    }
    void order(cudaStream_t after, cudaStream_t before) {
        cudaEventRecord(ready, before);
        cudaStreamWaitEvent(after, ready, 0);
    }
};

std::string fault_of(const std::function<void()>& f) {
    try {
        f();
    } catch (const emu::Fault& e) {
        std::printf("    %s\n", e.what());
        return e.what();
    }
    return "";
}

class Runtime : public testing::TestWithParam<std::pair<emu::Order, unsigned>> {
  protected:
    void SetUp() override {
        emu::device_options.order = GetParam().first;
        emu::device_options.seed = GetParam().second;
        emu::device_options.default_stream = false;
        emu::device_options.alone_seconds = 0;
        emu::reset_devices();
    }
};
INSTANTIATE_TEST_SUITE_P(Orders, Runtime,
                         testing::Values(std::pair{emu::Order::as_submitted, 1U}, std::pair{emu::Order::last_stream_first, 1U},
                                         std::pair{emu::Order::random, 1U}, std::pair{emu::Order::random, 2U}));

TEST_P(Runtime, OrderedPipelineGivesTheResult) {
    Rank r;
    cudaMemcpyAsync(r.a, r.in.data(), kBytes, cudaMemcpyHostToDevice, r.communication);
    r.order(r.compute, r.communication);
    affine(r.b, r.a, 2, 1, kN, r.compute);
    r.order(r.communication, r.compute);
    cudaMemcpyAsync(r.out.data(), r.b, kBytes, cudaMemcpyDeviceToHost, r.communication);
    EXPECT_EQ(r.out[7], -1.0F) << "nothing runs before the host waits";
    cudaStreamSynchronize(r.communication);
    for (int i = 0; i < kN; ++i) ASSERT_EQ(r.out[i], 2.0F * i + 1.0F);
}

TEST_P(Runtime, MissingEventWaitIsNamed) {
    Rank r;
    cudaMemcpyAsync(r.a, r.in.data(), kBytes, cudaMemcpyHostToDevice, r.communication);
    EXPECT_NE(fault_of([&] { affine(r.b, r.a, 2, 1, kN, r.compute); }).find("is not ordered after the write by cudaMemcpyAsync"),
              std::string::npos);
}

TEST_P(Runtime, MissingEventWaitGivesWrongResultsInHostileOrder) {  // were it not named
    Rank r;
    emu::device_options.check_order = false;
    cudaMemcpyAsync(r.a, r.in.data(), kBytes, cudaMemcpyHostToDevice, r.compute);
    affine(r.b, r.a, 2, 1, kN, r.communication);
    cudaMemcpyAsync(r.out.data(), r.b, kBytes, cudaMemcpyDeviceToHost, r.communication);
    cudaStreamSynchronize(r.communication);
    cudaStreamSynchronize(r.compute);
    emu::device_options.check_order = true;
    if (GetParam().first == emu::Order::random) return;
    EXPECT_EQ(std::isnan(r.out[7]), GetParam().first == emu::Order::last_stream_first);
}

TEST_P(Runtime, EventRecordedBeforeTheWorkDoesNotOrderIt) {
    Rank r;
    cudaEventRecord(r.ready, r.communication);
    cudaMemcpyAsync(r.a, r.in.data(), kBytes, cudaMemcpyHostToDevice, r.communication);
    cudaStreamWaitEvent(r.compute, r.ready, 0);
    EXPECT_NE(fault_of([&] { affine(r.b, r.a, 2, 1, kN, r.compute); }), "");
}

TEST_P(Runtime, OverwritingABufferStillReadIsNamed) {  // the double-buffer mistake
    Rank r;
    cudaMemcpyAsync(r.a, r.in.data(), kBytes, cudaMemcpyHostToDevice, r.communication);
    r.order(r.compute, r.communication);
    affine(r.b, r.a, 2, 1, kN, r.compute);
    EXPECT_NE(fault_of([&] {
                  cudaMemcpyAsync(r.a, r.in.data(), kBytes, cudaMemcpyHostToDevice, r.communication);
              }).find("after the read by affine_kernel"),
              std::string::npos);
}

TEST_P(Runtime, PartsOfAnArenaAreIndependent) {
    Rank r;
    emu::name_sub_buffer(r.a, 400, "unit 0");
    emu::name_sub_buffer(r.a + 100, 400, "unit 1");
    cudaMemsetAsync(r.a, 0, 400, r.communication);
    EXPECT_EQ(fault_of([&] { affine(r.a + 100, r.b, 0, 1, 100, r.compute); }), "");
    EXPECT_NE(fault_of([&] { affine(r.a, r.b, 0, 1, 100, r.compute); }).find("unit 0"), std::string::npos);
}

TEST_P(Runtime, AnArenaNeedsNoNamesWhereAccessesAreSeen) {
    if (emu::observer == nullptr) GTEST_SKIP() << "needs the checked build";
    Rank r;
    affine(r.a + 100, r.b, 0, 1, 100, r.compute);
    cudaMemsetAsync(r.a, 0, 400, r.communication);
    cudaMemsetAsync(r.a + 200, 0, 400, r.communication);
    cudaStreamSynchronize(r.compute);
    affine(r.a + 100, r.b, 0, 1, 101, r.compute);
    EXPECT_NE(fault_of([&] { cudaStreamSynchronize(r.compute); }).find("at its byte 800"), std::string::npos);
}

TEST_P(Runtime, ARemovedWaitIsNoticed) {
    for (const long removed : {1L, 2L}) {
        emu::reset_devices();
        Rank r;
        emu::forget_calls();
        emu::fail_call("useful wait", static_cast<int>(removed));
        EXPECT_NE(fault_of([&] {
                      cudaMemcpyAsync(r.a, r.in.data(), kBytes, cudaMemcpyHostToDevice, r.communication);
                      r.order(r.compute, r.communication);
                      if (removed == 2) r.order(r.compute, r.communication);  // orders nothing new, and is not counted
                      affine(r.b, r.a, 2, 1, kN, r.compute);
                      r.order(r.communication, r.compute);
                      cudaMemcpyAsync(r.out.data(), r.b, kBytes, cudaMemcpyDeviceToHost, r.communication);
                  }).find("is not ordered after"),
                  std::string::npos);
        EXPECT_EQ(emu::calls().at("useful wait"), removed);
    }
}

TEST_P(Runtime, PollingMakesProgress) {
    Rank r;
    for (int i = 0; i < 3; ++i) cudaMemsetAsync(r.a, i, kBytes, r.compute);
    r.order(r.communication, r.compute);
    int polls = 0;
    while (cudaStreamQuery(r.compute) == cudaErrorNotReady && polls < 100) ++polls;
    EXPECT_GT(polls, 1);
    EXPECT_LT(polls, 100);
    while (cudaEventQuery(r.ready) == cudaErrorNotReady && polls < 200) ++polls;
    EXPECT_LT(polls, 200);
}

TEST_P(Runtime, WorkGoesOnWhileTheHostIsAway) {
    emu::device_options.alone_seconds = 0.05;
    Rank r;
    std::atomic<bool> done = false;
    cudaLaunchHostFunc(
        r.compute, [](void* to) { static_cast<std::atomic<bool>*>(to)->store(true); }, &done);
    EXPECT_FALSE(done);
    for (int i = 0; i < 3000 && !done; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));  // as one waits for other ranks
    EXPECT_TRUE(done);
}

TEST_P(Runtime, HostFunctionsRunInOrderAndMustNotCallCuda) {
    Rank r;
    std::vector<int> seen;
    cudaLaunchHostFunc(
        r.compute, [](void* v) { static_cast<std::vector<int>*>(v)->push_back(1); }, &seen);
    cudaLaunchHostFunc(
        r.compute, [](void* v) { static_cast<std::vector<int>*>(v)->push_back(2); }, &seen);
    EXPECT_TRUE(seen.empty());
    cudaStreamSynchronize(r.compute);
    EXPECT_EQ(seen, (std::vector<int>{1, 2}));
    cudaLaunchHostFunc(
        r.compute, [](void*) { cudaGetLastError(), cudaFree(nullptr); }, nullptr);
    EXPECT_NE(fault_of([&] { cudaStreamSynchronize(r.compute); }).find("cudaFree is called from a host function"), std::string::npos);
}

TEST_P(Runtime, HostFunctionsOfTwoRanksMayWaitForEachOther) {
    std::vector<std::thread> all;
    std::atomic<int> here{0};
    for (int rank = 0; rank < 2; ++rank)
        all.emplace_back([&, rank] {
            cudaSetDevice(rank);
            Rank r;
            cudaLaunchHostFunc(
                r.compute,
                [](void* v) {
                    auto& count = *static_cast<std::atomic<int>*>(v);
                    ++count;
                    while (count < 2) std::this_thread::yield();
                },
                &here);
            cudaStreamSynchronize(r.compute);
        });
    for (auto& t : all) t.join();
    EXPECT_EQ(here, 2);
}

TEST_P(Runtime, VisibleDevicesAreCountedAsCudaDoes) {
    char id[32];
    setenv("CUDA_VISIBLE_DEVICES", "3,1", 1);
    int n = 0;
    cudaGetDeviceCount(&n);
    EXPECT_EQ(n, 2);
    cudaDeviceGetPCIBusId(id, sizeof id, 0);
    EXPECT_STREQ(id, "0000:40:00.0");
    EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
    unsetenv("CUDA_VISIBLE_DEVICES");
    emu::device_options.driver = 0;
    EXPECT_EQ(cudaGetDeviceCount(&n), cudaErrorInsufficientDriver);
    EXPECT_EQ(cudaGetLastError(), cudaErrorInsufficientDriver);  // read, so that no later launch finds it
    emu::device_options.driver = 13000;
}

TEST_P(Runtime, FreedMemoryIsNamed) {
    Rank r;
    float* p;
    cudaMallocAsync(reinterpret_cast<void**>(&p), kBytes, r.compute);
    EXPECT_NE(fault_of([&] { cudaMemsetAsync(p, 0, kBytes, r.communication); }), "")
        << "used on a stream that does not wait for the allocation";
    affine(p, r.b, 0, 1, kN, r.compute);
    cudaFreeAsync(p, r.compute);
    EXPECT_NE(fault_of([&] { affine(p, r.b, 0, 1, kN, r.compute); }).find("after it was freed"), std::string::npos);
    cudaStreamSynchronize(r.compute);
}

TEST_P(Runtime, MemoryLimitIsKept) {
    float* p;
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&p), std::size_t{5} << 30), cudaErrorMemoryAllocation);
    EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
}

TEST_P(Runtime, HostCannotTouchDeviceMemory) {
    Rank r;
    cudaMemsetAsync(r.a, 0, kBytes, r.compute);
    cudaStreamSynchronize(r.compute);
    EXPECT_DEATH({ *static_cast<volatile float*>(r.a) = 1.0F; }, "");
}

// ---- ranks ----------------------------------------------------------------------------------------------------------

void as_threads(int ranks, const std::function<void(int, ncclComm_t)>& body) {
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    std::vector<std::thread> all;
    for (int r = 0; r < ranks; ++r) {
        all.emplace_back([&, r] {
            cudaSetDevice(r);
            ncclComm_t comm;
            ASSERT_EQ(ncclCommInitRank(&comm, ranks, id, r), ncclSuccess);
            body(r, comm);
            ncclCommAbort(comm);  // some bodies leave collectives that never end
        });
    }
    for (auto& t : all) t.join();
}

void gather_and_reduce(int rank, int ranks, ncclComm_t comm) {
    Rank r;
    const int part = kN / ranks;
    cudaMemcpyAsync(r.b, r.in.data(), kBytes, cudaMemcpyHostToDevice, r.compute);
    affine(r.b, r.b, 1, 1000.0F * static_cast<float>(rank), part, r.compute);
    r.order(r.communication, r.compute);
    ncclAllGather(r.b, r.a, static_cast<std::size_t>(part), ncclFloat, comm, r.communication);
    ncclAllReduce(r.a, r.a, static_cast<std::size_t>(part * ranks), ncclFloat, ncclSum, comm, r.communication);
    ncclGroupStart();  // unequal parts, as broadcasts
    for (int root = 0; root < ranks; ++root)
        ncclBroadcast(r.a + root * 10, r.b + root * 10, static_cast<std::size_t>(root + 1), ncclFloat, root, comm, r.communication);
    ncclGroupEnd();
    cudaMemcpyAsync(r.out.data(), r.b, kBytes, cudaMemcpyDeviceToHost, r.communication);
    cudaStreamSynchronize(r.communication);
    for (int root = 0; root < ranks; ++root) {
        const int owner = root * 10 / part;
        ASSERT_EQ(r.out[root * 10], static_cast<float>(ranks * (root * 10 - owner * part + 1000 * owner)));
    }
}

TEST_P(Runtime, CollectivesBetweenThreads) {
    as_threads(3, [](int rank, ncclComm_t comm) { gather_and_reduce(rank, 3, comm); });
}

TEST_P(Runtime, CollectivesBetweenProcesses) {
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    for (int rank = 0; rank < 2; ++rank) {
        if (fork() == 0) {
            ncclComm_t comm;
            ncclCommInitRank(&comm, 2, id, rank);
            gather_and_reduce(rank, 2, comm);
            _exit(testing::Test::HasFailure() ? 1 : 0);
        }
    }
    for (int rank = 0; rank < 2; ++rank) {
        int status = -1;
        wait(&status);
        EXPECT_EQ(status, 0);
    }
}

TEST_P(Runtime, GatherWithoutWaitIsNamed) {
    as_threads(2, [](int, ncclComm_t comm) {
        Rank r;
        affine(r.b, r.b, 0, 1, kN, r.compute);
        EXPECT_NE(fault_of([&] { ncclAllGather(r.b, r.a, kN / 2, ncclFloat, comm, r.communication); }).find("ncclAllGather"),
                  std::string::npos);
    });
}

TEST_P(Runtime, MismatchedCollectivesAreNamed) {
    as_threads(2, [](int rank, ncclComm_t comm) {
        Rank r;
        ncclAllReduce(r.a, r.a, rank == 0 ? 10 : 11, ncclFloat, ncclSum, comm, r.communication);
        EXPECT_NE(fault_of([&] { cudaStreamSynchronize(r.communication); }).find("of 11"), std::string::npos);
    });
}

TEST_P(Runtime, AbsentRankIsAHangThatNamesTheCollective) {
    emu::device_options.hang_seconds = 0.2;
    as_threads(2, [](int rank, ncclComm_t comm) {
        if (rank == 1) return;
        Rank r;
        ncclAllReduce(r.a, r.a, 10, ncclFloat, ncclSum, comm, r.communication);
        EXPECT_NE(fault_of([&] { cudaStreamSynchronize(r.communication); }).find("hangs"), std::string::npos);
    });
    emu::device_options.hang_seconds = 10;
}

}  // namespace
