/// Choosing a GPU, and the words about it and its memory: what needs none.
#include "backend/memory_account.hpp"

#include "sherd/backend/devices.hpp"
#include "sherd/comm/nccl.hpp"
#include "sherd/runtime/error.hpp"

#include <gtest/gtest.h>

#include <functional>

namespace sherd::tests {
namespace {

std::string failure_of(const std::function<void()>& work) {
    try {
        work();
    } catch (const DeviceError& error) {
        return error.what();
    }
    return "";
}

TEST(Devices, ARankTakesTheGpuOfItsLocalRankOrTheOnlyOne) {
    for (const int local_rank : {0, 1, 2, 3}) {
        EXPECT_EQ(choose_gpu(4, local_rank), local_rank);
        EXPECT_EQ(choose_gpu(1, local_rank), 0);
    }
    EXPECT_EQ(choose_gpu(4, 5), 1);
    EXPECT_EQ(choose_gpu(0, 3), 0);
}

TEST(Devices, DuplicatesAreTheLowestTwoRanks) {
    EXPECT_EQ(first_duplicate({"a/1", "a/2", "b/1"}), std::nullopt);
    EXPECT_EQ(first_duplicate({"", "", ""}), std::nullopt);
    EXPECT_EQ(first_duplicate({"a/1", "b/1", "a/2", "b/1", "a/1"}), (std::pair{1, 3}));
}

TEST(Devices, MachinesHaveAnIdentity) {
    EXPECT_FALSE(machine_id().empty());
    EXPECT_EQ(machine_id(), machine_id());
}

TEST(Devices, CodeRunsOnTheSameMajorVersionAndByPtxOnLaterOnes) {
    const std::string built = "75 80 90";
    for (const int sm : {75, 80, 86, 89, 90, 100, 120}) EXPECT_TRUE(code_runs_on(built, sm / 10, sm % 10)) << sm;
    for (const int sm : {60, 70, 72}) EXPECT_FALSE(code_runs_on(built, sm / 10, sm % 10)) << sm;
    EXPECT_FALSE(code_runs_on("86", 8, 0));
    EXPECT_TRUE(code_runs_on("70 75", 7, 0));
    EXPECT_TRUE(code_runs_on("80 90a", 9, 0));
    EXPECT_FALSE(code_runs_on("80 90a", 10, 0)) << "PTX of a specific architecture runs nowhere else";
    EXPECT_FALSE(code_runs_on("", 9, 0));
    EXPECT_EQ(code_for(built, 8, 6), 80);
    EXPECT_EQ(code_for("75 80 86 90", 8, 9), 86);
    EXPECT_EQ(code_for("70 75", 9, 0), 75) << "PTX of the last";
    EXPECT_EQ(code_for("90 75", 10, 0), 75) << "PTX of the last, not of the newest";
}

TEST(Devices, DescriptionsTellWhatMatters) {
    Gpu gpu;
    gpu.name = "NVIDIA H200";
    gpu.major = 9;
    gpu.memory_bytes = 150'754'820'096;
    gpu.clock_mhz = 1980;
    gpu.memory_clock_mhz = 3201;
    gpu.ecc = true;
    gpu.driver = "CUDA 13.0 (580.65.06)";
    EXPECT_EQ(gpu.description(), "cuda: NVIDIA H200, sm_90, 140.4 GiB, 1980 MHz, memory 3201 MHz, ECC on, driver CUDA 13.0 (580.65.06)");
}

TEST(Devices, WithoutCudaTheErrorsSayHowToGetIt) {
    if (built_with_cuda()) GTEST_SKIP() << "this build has CUDA";
    EXPECT_NE(cuda_build().find("make CUDA=1"), std::string::npos);
    EXPECT_TRUE(find_gpus().list.empty());
    EXPECT_NE(find_gpus().why_none.find("CUDA_HOME"), std::string::npos);
    EXPECT_NE(failure_of([] { (void)make_cuda_backend({}); }).find("built without CUDA"), std::string::npos);
}

TEST(Devices, WithoutNcclTheErrorsSayHowToGetIt) {
    if (built_with_nccl()) GTEST_SKIP() << "this build has NCCL";
    const auto backend = make_cpu_backend(1);
    const std::string text = failure_of([&] { (void)make_nccl_communicator(make_single_communicator(nullptr), *backend, {0}, {}); });
    EXPECT_NE(text.find("NCCL_HOME"), std::string::npos) << text;
    EXPECT_NE(text.find("communication.backend = mpi"), std::string::npos) << text;
}

TEST(Devices, WithoutADriverThereIsAReasonAndNoError) {
    if (!built_with_cuda()) GTEST_SKIP() << "this build has no CUDA";
    const Gpus gpus = find_gpus();
    if (!gpus.list.empty()) GTEST_SKIP() << "this machine has a GPU";
    EXPECT_NE(gpus.why_none.find("driver"), std::string::npos) << gpus.why_none;
    EXPECT_NE(failure_of([] { (void)make_cuda_backend({}); }).find("driver"), std::string::npos);
}

TEST(Devices, HealthIsUnknownWithoutNvml) {
    const GpuHealth health = GpuMonitor("ffff:ff:1f.0").read();
    EXPECT_EQ(health.temperature_c, -1);
    EXPECT_EQ(health.power_w, -1);
    EXPECT_EQ(health.ecc_errors, -1);
    EXPECT_FALSE(health.throttling.has_value());
}

TEST(MemoryAccount, ListsWhoHoldsWhatLargestFirst) {
    MemoryAccount account;
    EXPECT_EQ(account.largest_first(), "nothing");
    int blocks[4];
    account.add(&blocks[0], 3u << 20, "weights");
    account.add(&blocks[1], std::uint64_t{5} << 30, "activations");
    account.add(&blocks[2], 512, "sums");
    account.add(&blocks[3], 4u << 20, "weights");
    EXPECT_EQ(account.held(), (std::uint64_t{5} << 30) + (7u << 20) + 512);
    EXPECT_EQ(account.largest_first(), "activations 5.0 GiB, weights 7.0 MiB, sums 512 bytes");
    account.remove(&blocks[1]);
    account.remove(&blocks[1]);
    EXPECT_EQ(account.largest_first(), "weights 7.0 MiB, sums 512 bytes");
    EXPECT_EQ(account.held(), (7u << 20) + 512);
}

}  // namespace
}  // namespace sherd::tests
