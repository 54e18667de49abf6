/// NCCL behind the interface of a Communicator, with ranks that are threads, each with a GPU of its own.
#include "../unit/comm_movements.hpp"
#include "../unit/thread_world.hpp"
#include "comm/nccl/exchange.hpp"
#include "comm/nccl/handle.hpp"
#include "harness/fake_device.hpp"
#include "harness/injection.hpp"

#include "sherd/backend/devices.hpp"
#include "sherd/comm/nccl.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>

namespace sherd::tests {
namespace {

/// A rank's GPU, stream and communicator.
struct Rank {
    Rank(int rank, const std::shared_ptr<ThreadHub>& hub, const NcclOptions& options = {})
        : backend(make_cuda_backend({.index = rank, .memory_limit = 0, .tf32 = false})),
          world(make_nccl_communicator(std::make_unique<ThreadCommunicator>(hub, rank), *backend, std::vector<int>{0, 0, 1, 1}, options)),
          stream(backend->make_stream("communication")) {}
    std::unique_ptr<Backend> backend;
    std::unique_ptr<Communicator> world;
    std::unique_ptr<Stream> stream;
};

class Nccl : public testing::TestWithParam<emu::Order> {
  protected:
    void SetUp() override {
        emu::device_options = {};
        emu::device_options.order = GetParam();
        emu::device_options.guard_memory = false;  // staging memory is large, and every wait would lock and unlock it
        emu::reset_devices();
    }
    void TearDown() override { emu::fail_call("", 0); }
};
INSTANTIATE_TEST_SUITE_P(Orders, Nccl, testing::Values(emu::Order::as_submitted, emu::Order::last_stream_first, emu::Order::random),
                         [](const auto& p) { return "order" + std::to_string(static_cast<int>(p.param)); });

using Move = std::function<void(Stream&, const Redistribution&)>;

void move_and_compare(Backend& backend, Stream& stream, const Move& move, int rank, const MovementCase& c, std::int64_t n, bool in_place) {
    const auto me = static_cast<std::size_t>(rank);
    const DeviceMemory first(backend, static_cast<std::size_t>(n) * 4, "from"), second(backend, static_cast<std::size_t>(n) * 4, "to");
    float *from = first.as<float>(), *to = in_place ? from : second.as<float>();
    std::vector<float> values, back(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) values.push_back(element(rank, i));
    backend.copy_to_device(stream, from, values.data(), values.size() * 4);
    move(stream, {c.mode, DType::f32, c.wire, from + c.sources[me].begin, to + c.owners[me].begin, c.sources, c.owners});
    backend.copy_to_host(stream, back.data(), to, back.size() * 4);
    backend.synchronize(stream);
    for (std::int64_t i = c.owners[me].begin; i < c.owners[me].end; ++i) {
        const float right = expected(c, rank, i), found = back[static_cast<std::size_t>(i)];
        if (right == 0 && c.mode == Redistribution::Mode::sum && c.kind != detail::MovementKind::exchange) {
            ASSERT_EQ(found, 0) << c.name;  // of either sign: NCCL's own sums do not start from 0
            continue;
        }
        ASSERT_EQ(std::memcmp(&found, &right, 4), 0)
            << c.name << ", rank " << me << ", element " << i << ": " << found << ", not " << right;
    }
}

void move_and_compare(Rank& r, Communicator& world, const MovementCase& c, std::int64_t n, bool in_place) {
    const Move move = [&](Stream& stream, const Redistribution& m) {
        world.redistribute(stream, m, {CommunicationPhase::reduce_gradients, 3});
    };
    move_and_compare(*r.backend, *r.stream, move, world.rank(), c, n, in_place);
}

TEST_P(Nccl, MovesWhatTheTablesSay) {
    const int ranks = 2 + static_cast<int>(GetParam());
    as_ranks(ranks, [&](int rank, const auto& hub) {
        Rank r(rank, hub);
        for (const MovementCase& c : movement_cases(ranks, 120))
            for (const bool in_place : {false, true}) move_and_compare(r, *r.world, c, 120, in_place);
    });
}

TEST_P(Nccl, AddsUpInRoundsWhereIntervalsAreLargerThanItsMemory) {
    const int ranks = 2 + static_cast<int>(GetParam());
    const std::int64_t n = 1200, staged = 64 * ranks;
    ncclUniqueId id{};
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    as_ranks(ranks, [&](int rank, const auto& hub) {
        const auto backend = make_cuda_backend({.index = rank, .memory_limit = 0, .tf32 = false});
        auto& device = dynamic_cast<cuda::CudaBackend&>(*backend);
        const auto stream = backend->make_stream("communication");
        detail::NcclHandle nccl(id, rank, ranks, 20, std::make_shared<detail::NcclFamily>());
        ASSERT_TRUE(nccl.start(20));
        detail::NcclStaging staging(device, staged);
        detail::NcclExchange exchange(device, staging, rank, ranks);
        const Move move = [&](Stream& s, const Redistribution& m) { exchange.sum(nccl, static_cast<cuda::CudaStream&>(s), m, "a sum"); };
        for (const MovementCase& c : movement_cases(ranks, n)) {
            if (c.kind != detail::MovementKind::exchange) continue;
            for (const bool in_place : {false, true}) move_and_compare(*backend, *stream, move, rank, c, n, in_place);
        }
        hub->exchange(rank, "");  // no rank leaves before all are done
    });
}

TEST_P(Nccl, GroupsHaveCommunicatorsOfTheirOwn) {
    as_ranks(4, [&](int rank, const auto& hub) {
        Rank r(rank, hub);
        const auto part = r.world->split(rank % 2);
        ASSERT_EQ(part->size(), 2);
        ASSERT_EQ(part->rank(), rank / 2);
        for (const MovementCase& c : movement_cases(2, 64)) move_and_compare(r, *part, c, 64, true);
        const auto alone = r.world->split(rank);
        for (const MovementCase& c : movement_cases(1, 8)) move_and_compare(r, *alone, c, 8, false);
    });
}

TEST_P(Nccl, CountsTrafficAndStaging) {
    as_ranks(4, [&](int rank, const auto& hub) {
        Rank r(rank, hub);
        move_and_compare(r, *r.world, movement_cases(4, 120)[3], 120, true);  // a reduce-scatter
        const Traffic sent = r.world->traffic();
        EXPECT_EQ(sent.bytes[static_cast<std::size_t>(CommunicationPhase::reduce_gradients)], 3u * 30 * 4);
        EXPECT_EQ(sent.between_nodes[static_cast<std::size_t>(CommunicationPhase::reduce_gradients)], 2u * 30 * 4);
        EXPECT_EQ(r.world->device_staging_bytes(), 48u << 20);
    });
}

/// What each of two ranks says; the second does not take part.
std::string failure_without_peer(const NcclOptions& options, const std::string& injected, int nth) {
    std::string text;
    as_ranks(2, [&](int rank, const auto& hub) {
        Rank r(rank, hub, options);
        barrier(*r.world);
        if (rank == 1) {
            barrier(*r.world);
            return;
        }
        if (!injected.empty()) emu::fail_call(injected, nth);
        const DeviceMemory data(*r.backend, 400, "data");
        try {
            all_gather(*r.world, *r.stream, data.data(), DType::f32, split_equally(100, 2, 1), {CommunicationPhase::gather_weights, 7});
            r.backend->synchronize(*r.stream);
        } catch (const DeviceError& error) {
            text = error.what();
        }
        emu::fail_call("", 0);
        barrier(*r.world);
    });
    return text;
}

TEST_P(Nccl, ACollectiveThatHangsIsNamedAndAborted) {
    testing::internal::CaptureStderr();
    const std::string text = failure_without_peer({{}, {0.05, 0.3}}, "", 0);
    const std::string warned = testing::internal::GetCapturedStderr();
    for (const char* part : {"'gather weights' of unit 7", "another rank is late or gone", "communication.timeout_s"})
        EXPECT_NE(text.find(part), std::string::npos) << text;
    EXPECT_NE(warned.find("warning: NCCL: 'gather weights' of unit 7"), std::string::npos) << warned;
}

/// A communicator that ends by force alone may wait for the collective of another, which waits for a rank that is gone; the stand-in
/// says so.
TEST_P(Nccl, AllCommunicatorsOfARankEndTogether) {
    std::array<std::string, 2> texts;
    as_ranks(2, [&](int rank, const auto& hub) {
        Rank r(rank, hub, {{}, {0.05, 0.3}});
        const auto group = r.world->split(0);
        if (rank == 0) {
            const DeviceMemory data(*r.backend, 800, "data");
            const auto gather = [&](Communicator& c, float* to) {
                all_gather(c, *r.stream, to, DType::f32, split_equally(100, 2, 1), {CommunicationPhase::gather_weights, 7});
            };
            gather(*group, data.as<float>());
            gather(*r.world, data.as<float>() + 100);
            try {
                r.backend->synchronize(*r.stream);
            } catch (const DeviceError& error) {
                texts[0] = error.what();
            }
            try {
                gather(*r.world, data.as<float>());
            } catch (const DeviceError& error) {
                texts[1] = error.what();
            }
        }
        barrier(*r.world);
    });
    EXPECT_NE(texts[0].find("another rank is late or gone"), std::string::npos) << texts[0];
    EXPECT_NE(texts[1].find("was aborted"), std::string::npos) << texts[1];
}

TEST(NcclFamily, AProcessThatAnAbortDoesNotFreeEndsAllTheSame) {
    EXPECT_EXIT(
        {
            detail::NcclFamily family(0.1);
            ncclComm_t one = nullptr;
            ncclUniqueId id{};
            ncclGetUniqueId(&id);
            ncclCommInitRank(&one, 1, id, 0);
            family.add(one);
            family.abort("a reason");
            std::this_thread::sleep_for(std::chrono::seconds(20));
        },
        testing::ExitedWithCode(5), "error: a reason; rank 0 .* could not end in order 0.1 s after NCCL was aborted");
    detail::NcclFamily ends_in_time(0.1);
    ends_in_time.abort("a reason");
}

TEST_P(Nccl, BlockingCommunicatorsAreRefused) {
    ::setenv("NCCL_COMM_BLOCKING", "1", 1);
    std::array<std::string, 2> texts;
    as_ranks(2, [&](int rank, const auto& hub) {
        try {
            const Rank r(rank, hub);
        } catch (const Error& error) {
            texts[static_cast<std::size_t>(rank)] = error.what();
        }
    });
    ::unsetenv("NCCL_COMM_BLOCKING");
    for (const std::string& text : texts) EXPECT_NE(text.find("NCCL_COMM_BLOCKING=1"), std::string::npos) << text;
}

TEST_P(Nccl, AnErrorBehindTheHostsBackIsFoundAndAborted) {
    const std::string text = failure_without_peer({}, "asynchronous error", 1);
    for (const char* part : {"'gather weights' of unit 7", "remote process exited", "NCCL_DEBUG"})
        EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST_P(Nccl, ARankThatDoesNotStartEndsTheStartOfAll) {
    emu::fail_call("ncclCommInitRankConfig", 2);
    std::array<std::string, 2> texts;
    as_ranks(2, [&](int rank, const auto& hub) {
        try {
            const Rank r(rank, hub, {{}, {20, 0.3}});
        } catch (const AgreedError& error) {
            EXPECT_EQ(error.exit_code(), ExitCode::device);
            texts[static_cast<std::size_t>(rank)] = error.what();
        }
    });
    EXPECT_EQ(texts[0], texts[1]);
    EXPECT_NE(texts[0].find("NCCL"), std::string::npos) << texts[0];
}

TEST_P(Nccl, AStartThatFailsOnOneRankAfterItBeganEndsTheOthersAtOnce) {
    emu::fail_call("asynchronous error", 1);
    std::array<std::string, 3> texts;
    const auto began = std::chrono::steady_clock::now();
    as_ranks(3, [&](int rank, const auto& hub) {
        try {
            const Rank r(rank, hub, {{}, {20, 30}});
        } catch (const AgreedError& error) {
            EXPECT_EQ(error.exit_code(), ExitCode::device);
            texts[static_cast<std::size_t>(rank)] = error.what();
        }
    });
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(10)) << "they waited for the deadline";
    EXPECT_EQ(texts[0], texts[1]);
    EXPECT_EQ(texts[0], texts[2]);
    for (const char* part : {"the start of a communicator of 3 ranks", "remote process exited", "(rank "})
        EXPECT_NE(texts[0].find(part), std::string::npos) << texts[0];
}

TEST_P(Nccl, AStartWithoutTheOthersHasADeadline) {
    const auto backend = make_cuda_backend({});
    ncclUniqueId id{};
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    detail::NcclHandle alone(id, 0, 2, 0.1, std::make_shared<detail::NcclFamily>());
    EXPECT_FALSE(alone.start(0.01)) << "the second rank has not come";
    try {
        (void)alone.start(20);
        FAIL() << "started without the second rank";
    } catch (const DeviceError& error) {
        EXPECT_NE(std::string(error.what()).find("the start of a communicator of 2 ranks was not done"), std::string::npos) << error.what();
    }
}

TEST_P(Nccl, VariablesOfTheDeckAreSetAndLogged) {
    ::unsetenv("NCCL_SHERD_TEST");
    testing::internal::CaptureStdout();
    as_ranks(2, [&](int rank, const auto& hub) { const Rank r(rank, hub, {{{"NCCL_SHERD_TEST", "7"}}, {}}); });
    const std::string text = testing::internal::GetCapturedStdout();
    EXPECT_STREQ(std::getenv("NCCL_SHERD_TEST"), "7");
    EXPECT_STREQ(std::getenv("NCCL_NVLS_ENABLE"), "0");
    EXPECT_NE(text.find("from the deck: NCCL_SHERD_TEST=7"), std::string::npos) << text;
}

}  // namespace
}  // namespace sherd::tests
