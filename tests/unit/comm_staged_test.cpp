/// Movements staged through the host, between ranks that are threads: every kind, in rounds, bit for bit.
#include "comm_movements.hpp"
#include "thread_world.hpp"

#include "sherd/backend/backend.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

namespace sherd::tests {
namespace {

/// In place: `from` and `to` are places in one array of all elements.
void move_and_compare(const MovementCase& c, int rank, Backend& backend, Communicator& world, std::int64_t n, bool in_place) {
    const auto me = static_cast<std::size_t>(rank);
    const auto stream = backend.make_stream("communication");
    const DeviceMemory first(backend, static_cast<std::size_t>(n) * 4, "from"), second(backend, static_cast<std::size_t>(n) * 4, "to");
    float *from = first.as<float>(), *to = in_place ? from : second.as<float>();
    for (std::int64_t i = 0; i < n; ++i) from[i] = element(rank, i);
    if (!in_place) std::fill_n(to, n, std::nanf(""));
    world.redistribute(*stream, {c.mode, DType::f32, c.wire, from + c.sources[me].begin, to + c.owners[me].begin, c.sources, c.owners}, {});
    backend.synchronize(*stream);
    for (std::int64_t i = c.owners[me].begin; i < c.owners[me].end; ++i) {
        const float right = expected(c, rank, i);
        ASSERT_EQ(std::memcmp(&to[i], &right, 4), 0)
            << c.name << ", rank " << rank << ", element " << i << ": " << to[i] << ", not " << right;
    }
}

TEST(StagedMovement, MovesWhatTheTablesSayAndAddsInRankOrder) {
    for (const int ranks : {1, 2, 3, 4})
        as_ranks(ranks, [&](int rank, const auto& hub) {
            const auto backend = make_cpu_backend(1, rank % 2 == 1 ? StreamOrder::delayed : StreamOrder::as_enqueued);
            ThreadCommunicator world(hub, rank, backend.get());
            for (const MovementCase& c : movement_cases(ranks, 120))
                for (const bool in_place : {false, true}) move_and_compare(c, rank, *backend, world, 120, in_place);
        });
}

TEST(StagedMovement, GoesInRoundsWhereIntervalsAreLargerThanItsMemory) {
    const std::int64_t n = 3 * (16 << 20) / 4;  // three rounds of copies of one rank's whole, two of sums
    as_ranks(2, [&](int rank, const auto& hub) {
        const auto backend = make_cpu_backend(1);
        ThreadCommunicator world(hub, rank, backend.get());
        const std::vector<MovementCase> cases = movement_cases(2, n);
        for (const std::size_t i : {std::size_t{1}, std::size_t{3}, std::size_t{6}})
            move_and_compare(cases[i], rank, *backend, world, n, true);
    });
}

/// Messages that arrive at once, and for which collectives they were waited for.
class NotingMessages final : public detail::Messages {
  public:
    void receive(int, void* to, std::int64_t bytes) override { std::memset(to, 0, static_cast<std::size_t>(bytes)); }
    void send(int, const void*, std::int64_t) override {}
    void finish(CollectiveTag tag) override { waited_for.push_back(text_of(tag)); }
    std::vector<std::string> waited_for;
};

TEST(StagedMovement, WaitsInTheNameOfTheirCollective) {
    const auto backend = make_cpu_backend(1);
    const auto stream = backend->make_stream("communication");
    NotingMessages messages;
    detail::StagedMovement staged(*backend, messages, 0, 2);
    const DeviceMemory memory(*backend, 8 * sizeof(float), "numbers");
    backend->zero(*stream, memory.data(), memory.bytes());
    const IntervalTable halves = split_equally(8, 2, 1), all = whole(2, 8);
    const auto move = [&](Redistribution::Mode mode, const IntervalTable& from, const IntervalTable& to, CollectiveTag tag) {
        staged.enqueue(*stream, {mode, DType::f32, DType::f32, memory.data(), memory.data(), from, to}, tag);
    };
    move(Redistribution::Mode::copy, halves, all, {CommunicationPhase::gather_weights, 3});
    move(Redistribution::Mode::sum, all, halves, {CommunicationPhase::reduce_gradients, 4});
    backend->synchronize(*stream);
    EXPECT_EQ(messages.waited_for, (std::vector<std::string>{"'gather weights' of unit 3", "'reduce gradients' of unit 4"}));
}

TEST(StagedMovement, CountsItsMemory) {
    as_ranks(3, [](int rank, const auto& hub) {
        const auto backend = make_cpu_backend(1);
        const ThreadCommunicator world(hub, rank, backend.get());
        EXPECT_GT(world.staging_bytes(), 32u << 20);
        EXPECT_LT(world.staging_bytes(), 64u << 20);
    });
}

TEST(MovementKinds, AreFoundFromTheTables) {
    for (const int ranks : {1, 2, 3, 4})
        for (const MovementCase& c : movement_cases(ranks, 120))
            EXPECT_EQ(detail::classify({c.mode, DType::f32, c.wire, nullptr, nullptr, c.sources, c.owners}), c.kind)
                << c.name << " over " << ranks;
}

TEST(MovementKinds, OverlappingOwnersAreNoReductions) {
    const Redistribution m{Redistribution::Mode::sum, DType::f32, DType::f32, nullptr, nullptr, whole(2, 8), {{0, 5}, {4, 8}}};
    EXPECT_EQ(detail::classify(m), detail::MovementKind::exchange);
}

TEST(MovementKinds, WhatNobodyHoldsIsNoReduction) {
    const Redistribution m{Redistribution::Mode::sum, DType::f32, DType::f32, nullptr, nullptr, whole(2, 4), {{0, 2}, {2, 8}}};
    EXPECT_EQ(detail::classify(m), detail::MovementKind::exchange);
}

}  // namespace
}  // namespace sherd::tests
