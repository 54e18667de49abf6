// The stand-in of NCCL: what each call moves, groups, nonblocking communicators, aborts, and the mistakes it names.
#include "harness/execution.hpp"
#include "harness/fake_device.hpp"
#include "harness/injection.hpp"

#include <gtest/gtest.h>

#include <cuda_runtime.h>
#include <functional>
#include <nccl.h>
#include <thread>
#include <vector>

namespace {

constexpr int kRanks = 3;

/// A rank: its stream, and device memory that is filled from and read to the host.
struct Rank {
    int rank;
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;
    float* data = nullptr;
    static constexpr std::size_t n = 24;

    explicit Rank(int r) : rank(r) {
        cudaSetDevice(r);
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        cudaMalloc(reinterpret_cast<void**>(&data), n * sizeof(float));
        std::vector<float> values;
        for (std::size_t i = 0; i < n; ++i) values.push_back(static_cast<float>(100 * rank) + static_cast<float>(i));
        cudaMemcpyAsync(data, values.data(), n * sizeof(float), cudaMemcpyHostToDevice, stream);
        cudaStreamSynchronize(stream);
    }
    std::vector<float> read() {
        std::vector<float> values(n);
        cudaMemcpyAsync(values.data(), data, n * sizeof(float), cudaMemcpyDeviceToHost, stream);
        cudaStreamSynchronize(stream);
        return values;
    }
};

void as_threads(const std::function<void(Rank&)>& body, bool blocking = true) {
    emu::device_options.default_stream = false;
    emu::reset_devices();
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    std::vector<std::thread> all;
    for (int r = 0; r < kRanks; ++r)
        all.emplace_back([&, r] {
            Rank rank(r);
            ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
            config.blocking = blocking ? 1 : 0;
            ASSERT_EQ(ncclCommInitRankConfig(&rank.comm, kRanks, id, r, &config), blocking ? ncclSuccess : ncclInProgress);
            body(rank);
        });
    for (auto& t : all) t.join();
}

std::string fault_of(const std::function<void()>& f) {
    try {
        f();
    } catch (const emu::Fault& e) {
        return e.what();
    }
    return "no fault";
}

float value(int rank, std::size_t i) {
    return static_cast<float>(100 * rank) + static_cast<float>(i);
}

TEST(Nccl, EveryCollectiveMovesWhatItSays) {
    as_threads([](Rank& r) {
        ncclReduceScatter(r.data, r.data + 2 * r.rank, 2, ncclFloat, ncclSum, r.comm, r.stream);
        ncclReduce(r.data + 8, r.data + 8, 1, ncclFloat, ncclMax, 1, r.comm, r.stream);
        ncclBroadcast(r.data + 9, r.data + 9, 1, ncclFloat, 2, r.comm, r.stream);
        ncclAllReduce(r.data + 10, r.data + 10, 2, ncclFloat, ncclAvg, r.comm, r.stream);
        ncclAllGather(r.data + 12 + r.rank, r.data + 12, 1, ncclFloat, r.comm, r.stream);
        const auto v = r.read();
        const auto i = static_cast<std::size_t>(2 * r.rank);
        EXPECT_EQ(v[i], 300.0F + 3 * static_cast<float>(i));
        EXPECT_EQ(v[8], r.rank == 1 ? value(2, 8) : value(r.rank, 8));
        EXPECT_EQ(v[9], value(2, 9));
        EXPECT_EQ(v[10], value(1, 10));
        for (int other = 0; other < kRanks; ++other)
            EXPECT_EQ(v[12 + static_cast<std::size_t>(other)], value(other, 12 + static_cast<std::size_t>(other)));
        ncclCommDestroy(r.comm);
    });
}

TEST(Nccl, GroupedMessagesCross) {
    as_threads([](Rank& r) {
        const int next = (r.rank + 1) % kRanks, previous = (r.rank + kRanks - 1) % kRanks;
        ncclGroupStart();
        for (std::size_t i = 0; i < 3; ++i) {  // several between the same two ranks, in order; the third is empty
            ncclSend(r.data + i, i == 2 ? 0 : 1, ncclFloat, next, r.comm, r.stream);
            ncclRecv(r.data + 10 + i, i == 2 ? 0 : 1, ncclFloat, previous, r.comm, r.stream);
        }
        ncclSend(r.data + 5, 1, ncclFloat, r.rank, r.comm, r.stream);  // to itself
        ncclRecv(r.data + 20, 1, ncclFloat, r.rank, r.comm, r.stream);
        ncclGroupEnd();
        const auto v = r.read();
        EXPECT_EQ(v[10], value(previous, 0));
        EXPECT_EQ(v[11], value(previous, 1));
        EXPECT_EQ(v[12], value(r.rank, 12));
        EXPECT_EQ(v[20], value(r.rank, 5));
        ncclCommDestroy(r.comm);
    });
}

TEST(Nccl, UngroupedMessagesThatCrossHang) {
    emu::device_options.hang_seconds = 0.2;
    as_threads([](Rank& r) {
        ncclSend(r.data, 1, ncclFloat, (r.rank + 1) % kRanks, r.comm, r.stream);
        ncclRecv(r.data + 1, 1, ncclFloat, (r.rank + kRanks - 1) % kRanks, r.comm, r.stream);
        EXPECT_NE(fault_of([&] { cudaStreamSynchronize(r.stream); }).find("hangs: stream"), std::string::npos);
        ncclCommAbort(r.comm);
        cudaStreamSynchronize(r.stream);  // what was under way ends
    });
    emu::device_options.hang_seconds = 10;
}

TEST(Nccl, SplitsByColorInOrderOfKeys) {
    as_threads([](Rank& r) {
        ncclComm_t part = nullptr;
        ASSERT_EQ(ncclCommSplit(r.comm, r.rank == 1 ? 7 : 3, -r.rank, &part, nullptr), ncclSuccess);
        int size = 0, rank = -1;
        ncclCommCount(part, &size);
        ncclCommUserRank(part, &rank);
        EXPECT_EQ(size, r.rank == 1 ? 1 : 2);
        EXPECT_EQ(rank, r.rank == 0 ? 1 : 0);
        ncclAllReduce(r.data, r.data, 1, ncclFloat, ncclSum, part, r.stream);
        EXPECT_EQ(r.read()[0], r.rank == 1 ? 100.0F : 200.0F);
        ncclCommDestroy(part);
        ncclCommDestroy(r.comm);
    });
}

void await(ncclComm_t comm) {
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) ASSERT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
    ASSERT_EQ(state, ncclSuccess);
}

TEST(Nccl, NonblockingCommunicatorsMustBePolled) {
    as_threads(
        [](Rank& r) {
            await(r.comm);
            EXPECT_EQ(ncclAllReduce(r.data, r.data, 1, ncclFloat, ncclSum, r.comm, r.stream), ncclInProgress);
            EXPECT_NE(fault_of([&] {
                          ncclAllReduce(r.data, r.data, 1, ncclFloat, ncclSum, r.comm, r.stream);
                      }).find("before ncclCommGetAsyncError"),
                      std::string::npos);
            EXPECT_EQ(r.read()[0], value(r.rank, 0)) << "not on the stream yet";
            await(r.comm);
            EXPECT_EQ(r.read()[0], 300.0F);
            ncclCommDestroy(r.comm);
        },
        false);
}

TEST(Nccl, AbsentRankLeavesANonblockingCommunicatorInProgress) {
    emu::reset_devices();
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, id, 0, &config), ncclInProgress);
    ncclResult_t state = ncclSuccess;
    ncclCommGetAsyncError(comm, &state);
    EXPECT_EQ(state, ncclInProgress);
    ncclCommAbort(comm);
}

TEST(Nccl, ABrokenCommunicatorEndsByAbort) {
    as_threads([](Rank& r) {
        ncclAllReduce(r.data, r.data, 1, ncclFloat, ncclSum, r.comm, r.stream);
        if (r.rank == 0) {
            emu::fail_call("asynchronous error", 1);
            ncclResult_t state = ncclSuccess;
            EXPECT_EQ(ncclCommGetAsyncError(r.comm, &state), ncclSuccess);
            EXPECT_EQ(state, ncclRemoteError);
        }
        ncclCommAbort(r.comm);
        EXPECT_EQ(cudaStreamSynchronize(r.stream), cudaSuccess);
    });
}

TEST(Nccl, MistakesAreNamed) {
    as_threads([](Rank& r) {
        EXPECT_NE(fault_of([&] { ncclAllGather(r.data + 1, r.data, 2, ncclFloat, r.comm, r.stream); }).find("in-place form"),
                  std::string::npos);
        EXPECT_NE(fault_of([&] {
                      ncclReduceScatter(r.data, r.data + 1 + 2 * r.rank, 2, ncclFloat, ncclSum, r.comm, r.stream);
                  }).find("in-place form"),
                  std::string::npos);
        ncclCommDestroy(r.comm);
    });
}

}  // namespace
