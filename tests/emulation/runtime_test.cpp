// Host code of a CUDA backend against the stand-ins of libcudart and libnccl: right code passes in every order, wrong code is
// named.
#include "harness/execution.hpp"
#include "harness/fake_device.hpp"
#include "runtime_kernels.hpp"

#include <gtest/gtest.h>

#include <cmath>
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
            ncclCommDestroy(comm);
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
