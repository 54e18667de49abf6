/// Every call of CUDA, cuBLASLt and NCCL fails in turn, and the host's error names it.
#include "../unit/comm_movements.hpp"
#include "../unit/thread_world.hpp"
#include "both_backends.hpp"
#include "harness/injection.hpp"

#include "sherd/comm/nccl.hpp"

#include <set>

namespace sherd::tests {
namespace {

/// Calls whose failure changes nothing: what ends something that is no longer needed, words about errors, and questions that are asked
/// again by a call that is checked.
const std::set<std::string>& harmless() {
    static const std::set<std::string> names{"cudaFree",
                                             "cudaFreeHost",
                                             "cudaStreamDestroy",
                                             "cudaEventDestroy",
                                             "cudaGetLastError",
                                             "cudaPeekAtLastError",
                                             "cudaStreamQuery",
                                             "cudaEventQuery",
                                             "cublasLtDestroy",
                                             "cudnnDestroy",
                                             "ncclCommDestroy",
                                             "ncclCommAbort",
                                             "ncclCommFinalize",
                                             "cublasLtMatmulDescDestroy",
                                             "cublasLtMatrixLayoutDestroy",
                                             "cublasLtMatmulPreferenceDestroy"};
    return names;
}

void compute(Backend& backend) {
    std::vector<float> values(256, 0.5f), back(16);  // first, so that they outlive what is queued when a call throws
    const auto stream = backend.make_stream("compute"), other = backend.make_stream("communication");
    const auto event = backend.make_event();
    const DeviceMemory memory(backend, 4096, "matrices");
    const Tensor x{memory.data(), DType::f32, 4, 8}, w{memory.as<float>() + 64, DType::f32, 4, 8},
        y{memory.as<float>() + 128, DType::f32, 4, 4};
    backend.copy_to_device(*stream, memory.data(), values.data(), 1024);
    backend.zero(*stream, y.data, y.bytes());
    backend.linear_forward(*stream, y, x, w, {memory.as<float>() + 160, DType::f32, 1, 4});
    backend.linear_backward_weight(*stream, w, y, x, true);
    backend.add(*stream, y, y, true);
    backend.sum(*stream, memory.as<double>() + 200, static_cast<const float*>(y.data), 16);
    backend.record(*event, *stream);
    backend.wait(*other, *event);
    backend.copy(*other, memory.as<float>() + 192, y.data, y.bytes());
    backend.host_task(*other, [] {});
    backend.copy_to_host(*other, back.data(), y.data, y.bytes());
    backend.synchronize(*other);
    (void)backend.available_memory_bytes();
}

/// Both ranks' errors as one. What fails on one leaves the other waiting, which hears of it as of a process that has ended.
void all_errors_of_ranks(const std::function<void(int rank, const std::shared_ptr<ThreadHub>&)>& body) {
    std::array<std::string, 2> texts;
    as_ranks(2, [&](int rank, const auto& hub) {
        try {
            body(rank, hub);
        } catch (const Error& error) {
            EXPECT_EQ(error.exit_code(), ExitCode::device) << error.what();
            texts[static_cast<std::size_t>(rank)] = error.what();
            emu::break_communicators();
        }
    });
    if (texts[0] + texts[1] != "") throw DeviceError(texts[0] + " / " + texts[1]);
}

class Failures : public testing::Test {
  protected:
    void SetUp() override {
        emu::device_options = {};
        emu::reset_devices();
    }
    void TearDown() override { emu::fail_call("", 0); }

    static std::string outcome(const std::function<void()>& scenario) {
        try {
            scenario();
        } catch (const Error& error) {
            EXPECT_EQ(error.exit_code(), ExitCode::device) << error.what();
            return error.what();
        }
        return "";
    }

    /// Each function that the scenario calls fails at its first and at its last call; where destructors call it last, or how
    /// often it is called depends on the time, the first one must do.
    static void fail_each_call_of(const std::function<void()>& scenario) {
        emu::forget_calls();
        ASSERT_EQ(outcome(scenario), "");
        const auto counts = emu::calls();
        ASSERT_GT(counts.size(), 20u);
        for (const auto& [name, count] : counts) {
            if (name == "useful wait" || name == "copy to host")
                continue;  // the one would be left out, the other is tried as the call it is
            for (const long nth : std::set<long>{1, count}) {
                emu::reset_devices();
                emu::fail_call(name, static_cast<int>(nth));
                const std::string text = outcome(scenario);
                emu::fail_call("", 0);
                const bool uncertain = nth == count && count > 1 &&
                                       (name == "cudaStreamSynchronize" || name == "asynchronous error" ||
                                        name == "ncclCommGetAsyncError" || name == "cudaEventCreateWithFlags");
                if (harmless().contains(name) || uncertain) continue;
                EXPECT_NE(text, "") << name << ", call " << nth << " of " << count << ": nothing was noticed";
                // cudaGetDevice is NCCL's own call
                const std::string function = name.starts_with("kernel") ? "launch" : name.substr(0, name.find(" out of memory"));
                const bool named = name == "cudaGetDevice" || text.find(function) != std::string::npos ||
                                   text.find("cannot allocate") != std::string::npos || text.find("cannot pin") != std::string::npos ||
                                   ((name.starts_with("nccl") || name == "asynchronous error") && text.find("NCCL") != std::string::npos);
                EXPECT_TRUE(named) << name << ", call " << nth << ": " << text;
                EXPECT_NE(text.find("rank"), std::string::npos) << text;
            }
        }
    }
};

TEST_F(Failures, OfOneGpuAreNamed) {
    fail_each_call_of([] { compute(*make_cuda_backend({})); });
}

TEST_F(Failures, BetweenRanksAreNamed) {
    testing::internal::CaptureStdout();  // "NCCL 2.28.9", hundreds of times
    fail_each_call_of([] {
        all_errors_of_ranks([](int rank, const auto& hub) {
            std::unique_ptr<Backend> backend;
            std::unique_ptr<Stream> stream;
            DeviceMemory data;
            ThreadCommunicator host(hub, rank);
            collectively(host, [&] { backend = make_cuda_backend({.index = rank, .memory_limit = 0, .tf32 = false}); });
            const auto world = make_nccl_communicator(std::make_unique<ThreadCommunicator>(hub, rank), *backend, {0, 1}, {{}, {20, 60}});
            collectively(host, [&] {
                stream = backend->make_stream("communication");
                data = DeviceMemory(*backend, 1024, "data");
            });
            float* numbers = data.as<float>();
            backend->zero(*stream, numbers, 1024);
            all_gather(*world, *stream, numbers, DType::f32, split_equally(64, 2, 1), {});
            all_gather(*world, *stream, numbers, DType::f32, {{0, 10}, {10, 64}}, {});
            reduce_scatter(*world, *stream, numbers, split_equally(64, 2, 1), {});
            reduce_scatter(*world, *stream, numbers, {{0, 10}, {10, 64}}, {});
            world->redistribute(*stream, {Redistribution::Mode::sum, DType::f32, DType::f32, numbers, numbers, whole(2, 64), whole(2, 64)},
                                {});
            world->redistribute(*stream, {Redistribution::Mode::sum, DType::f32, DType::bf16, numbers, numbers, whole(2, 64), whole(2, 64)},
                                {});
            backend->synchronize(*stream);
        });
    });
    const std::string text = testing::internal::GetCapturedStdout();
    if (HasFailure()) std::printf("%s\n", text.c_str());
}

}  // namespace
}  // namespace sherd::tests
