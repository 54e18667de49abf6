/// Collectives against closed forms and serial loops, at whatever world size the tests were started with.
#include "world.hpp"

#include "sherd/backend/backend.hpp"
#include "sherd/comm/communicator.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

namespace sherd::tests {
namespace {

using Floats = std::vector<float>;

/// A number whose magnitude varies over six decades, so that its sums depend on their order. The scales are powers of two: the product is
/// exact, and a compiler that fuses it with the sum changes nothing.
float addend(int rank, std::int64_t i) {
    std::uint64_t x = static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15ull + static_cast<std::uint64_t>(rank) * 0xD1B54A32D192ED03ull;
    x = (x ^ (x >> 31)) * 0x94D049BB133111EBull;
    const float unit = static_cast<float>(x >> 40) / 16777216.0f - 0.5f;
    constexpr float scales[] = {0x1p-10f, 1.0f, 0x1p10f};
    return unit * scales[(x >> 8) % 3];
}

class Collectives : public ::testing::Test {
  protected:
    // odd ranks run late, so that a missing order between stream and host would show
    Collectives()
        : backend_(make_cpu_backend(1, session().topology().local_rank % 2 == 1 ? StreamOrder::delayed : StreamOrder::as_enqueued)),
          world_(session().world(*backend_)),
          stream_(backend_->make_stream("collectives")) {}

    int rank() const { return world_->rank(); }
    int size() const { return world_->size(); }
    Interval mine(const IntervalTable& owners) const { return owners[static_cast<std::size_t>(rank())]; }

    /// Tables over all ranks: even, uneven, with empty intervals, and all on one rank.
    std::vector<IntervalTable> tables(std::int64_t n) const {
        const auto ranks = static_cast<std::size_t>(size());
        std::vector<double> rising(ranks), gaps(ranks), last(ranks, 0.0), first(ranks, 0.0);
        for (std::size_t r = 0; r < ranks; ++r) {
            rising[r] = static_cast<double>(r + 1);
            gaps[r] = r % 2 == 0 ? 1.0 : 0.0;
        }
        last.back() = first.front() = 1.0;
        std::vector<IntervalTable> all{split_equally(n, size(), 1), split_equally(n, size(), 64)};
        for (const auto& shares : {rising, gaps, last, first}) all.push_back(split_by_shares(n, shares, 1));
        return all;
    }

    /// What reduce_scatter leaves in this rank's interval.
    Floats reduced(const Floats& addends, const IntervalTable& owners) {
        DeviceMemory memory(*backend_, std::max<std::size_t>(addends.size(), 1) * sizeof(float), "addends");
        const std::size_t bytes = addends.size() * sizeof(float);
        backend_->copy_to_device(*stream_, memory.data(), addends.data(), bytes);
        reduce_scatter(*world_, *stream_, memory.as<float>(), owners, {});
        Floats whole(addends.size());
        backend_->copy_to_host(*stream_, whole.data(), memory.data(), bytes);
        (void)world_->exchange("the host talks while the stream works");
        backend_->synchronize(*stream_);
        return {whole.begin() + mine(owners).begin, whole.begin() + mine(owners).end};
    }

    std::unique_ptr<Backend> backend_;
    std::unique_ptr<Communicator> world_;
    std::unique_ptr<Stream> stream_;
};

// the longest needs several rounds of staging at every world size
constexpr std::int64_t lengths[] = {0, 1, 2, 7, 1000, 2'500'003};

TEST_F(Collectives, SumIsTheClosedForm) {
    const auto ranks = static_cast<float>(size());
    for (const std::int64_t n : lengths) {
        Floats addends(static_cast<std::size_t>(n));
        for (std::size_t i = 0; i < addends.size(); ++i) addends[i] = static_cast<float>((rank() + 1) * static_cast<int>(i % 1000 + 1));
        for (const IntervalTable& owners : tables(n)) {
            const Floats sums = reduced(addends, owners);
            std::int64_t wrong = 0;
            for (std::size_t i = 0; i < sums.size(); ++i) {
                const std::int64_t at = mine(owners).begin + static_cast<std::int64_t>(i);
                if (sums[i] != ranks * (ranks + 1) / 2 * static_cast<float>(at % 1000 + 1)) ++wrong;
            }
            EXPECT_EQ(wrong, 0) << "of " << sums.size() << " sums, n = " << n;
        }
    }
}

TEST_F(Collectives, SumsAreTakenInRankOrder) {
    constexpr std::int64_t n = 50'021;
    Floats addends, forward, backward;
    for (std::int64_t i = 0; i < n; ++i) {
        addends.push_back(addend(rank(), i));
        float up = addend(0, i), down = addend(size() - 1, i);
        for (int r = 1; r < size(); ++r) up += addend(r, i);
        for (int r = size() - 2; r >= 0; --r) down += addend(r, i);
        forward.push_back(up);
        backward.push_back(down);
    }
    // two addends commute; with more the comparison below must be able to tell orders apart
    EXPECT_EQ(forward == backward, size() <= 2);
    for (const IntervalTable& owners : tables(n)) {
        const Floats sums = reduced(addends, owners);
        EXPECT_EQ(sums.empty(), mine(owners).empty());
        EXPECT_EQ(sums.empty() ? 0 : std::memcmp(sums.data(), forward.data() + mine(owners).begin, sums.size() * sizeof(float)), 0);
    }
}

TEST_F(Collectives, GatherGivesEveryRankEverything) {
    const auto value = [](std::int64_t i) { return static_cast<char>((i * 7 + i / 251) % 127 + 1); };
    for (const std::int64_t n : lengths)
        for (const DType type : {DType::u8, DType::bf16, DType::f32})
            for (const IntervalTable& owners : tables(n)) {
                const std::size_t width = size_of(type);
                const auto bytes = static_cast<std::size_t>(n) * width;
                std::string data(bytes, '\0');
                for (std::size_t i = static_cast<std::size_t>(mine(owners).begin) * width;
                     i < static_cast<std::size_t>(mine(owners).end) * width; ++i)
                    data[i] = value(static_cast<std::int64_t>(i));
                DeviceMemory memory(*backend_, std::max<std::size_t>(bytes, 1), "shards");
                backend_->copy_to_device(*stream_, memory.data(), data.data(), bytes);
                all_gather(*world_, *stream_, memory.data(), type, owners, {});
                std::string whole(bytes, '\0');
                backend_->copy_to_host(*stream_, whole.data(), memory.data(), bytes);
                backend_->synchronize(*stream_);
                std::int64_t wrong = 0;
                for (std::size_t i = 0; i < bytes; ++i)
                    if (whole[i] != value(static_cast<std::int64_t>(i))) ++wrong;
                EXPECT_EQ(wrong, 0) << "bytes of " << bytes << ", elements of " << width;
            }
}

TEST_F(Collectives, TrafficIsTheLowerBound) {
    constexpr std::int64_t n = 12'345;
    for (const IntervalTable& owners : tables(n)) {
        const Traffic before = world_->traffic();
        (void)reduced(Floats(n, 1.0f), owners);
        const std::int64_t others = size() == 1 ? 0 : n - mine(owners).size();
        const std::uint64_t summed = world_->traffic().total();
        EXPECT_EQ(summed - before.total(), static_cast<std::uint64_t>(others) * sizeof(float));
        DeviceMemory memory(*backend_, n * 2, "shards");
        all_gather(*world_, *stream_, memory.data(), DType::bf16, owners, {});
        backend_->synchronize(*stream_);
        const std::int64_t sent = mine(owners).size() * (size() - 1);
        EXPECT_EQ(world_->traffic().total() - summed, static_cast<std::uint64_t>(sent) * 2);
    }
}

TEST_F(Collectives, ExchangeKeepsRanksApart) {
    const auto text = [](int r) {
        return std::string(static_cast<std::size_t>(r * 1000), static_cast<char>('a' + r)) + std::string(1, '\0');
    };
    const auto all = world_->exchange(rank() == 1 ? std::string() : text(rank()));
    ASSERT_EQ(all.size(), static_cast<std::size_t>(size()));
    for (int r = 0; r < size(); ++r) EXPECT_EQ(all[static_cast<std::size_t>(r)], r == 1 ? std::string() : text(r)) << "rank " << r;
    for (const std::string& nothing : world_->exchange({})) EXPECT_EQ(nothing, "");
}

TEST_F(Collectives, HostSumsAreTakenInRankOrder) {
    std::vector<double> values{0.1 * (rank() + 1), 1e16 * (rank() % 2 == 0 ? 1 : -1) + rank(), -0.0};
    std::vector<double> expected(values.size(), 0.0);
    for (int r = 0; r < size(); ++r) {
        expected[0] += 0.1 * (r + 1);
        expected[1] += 1e16 * (r % 2 == 0 ? 1 : -1) + r;
    }
    all_reduce_sum(*world_, values);
    EXPECT_EQ(values, expected);
}

TEST_F(Collectives, SmallAgreements) {
    EXPECT_EQ(broadcast(*world_, fmt::format("from {}", rank())), "from 0");
    EXPECT_FALSE(any_of_ranks(*world_, false));
    EXPECT_TRUE(any_of_ranks(*world_, rank() == size() - 1));
    barrier(*world_);
}

/// What `collectively` throws here; empty where it throws nothing.
template <class Work>
std::string agreed(Communicator& world, ExitCode code, Work work) {
    try {
        collectively(world, work);
    } catch (const AgreedError& error) {
        EXPECT_EQ(error.exit_code(), code);
        return error.what();
    }
    return "";
}

TEST_F(Collectives, OneRanksErrorIsEveryRanks) {
    EXPECT_EQ(agreed(*world_, ExitCode::done, [] {}), "");
    for (int bad = 0; bad < size(); ++bad) {
        const std::string text = agreed(*world_, ExitCode::input, [&] {
            if (rank() == bad) throw InputError("file of rank {} is bad", bad);
            if (rank() > bad) throw UsageError("a later rank's error");
        });
        EXPECT_NE(text.find(fmt::format("file of rank {} is bad", bad)), std::string::npos) << text;
        EXPECT_EQ(text.find("(rank ") != std::string::npos, size() > 1) << text;
        for (const std::string& other : world_->exchange(text)) EXPECT_EQ(other, text);
    }
    const std::string text = agreed(*world_, ExitCode::device, [&] {
        if (rank() == size() - 1) throw std::bad_alloc();
    });
    EXPECT_NE(text.find("out of memory"), std::string::npos) << text;
}

TEST_F(Collectives, AnAgreedErrorKeepsItsCause) {
    for (const bool lacks_memory : {false, true}) {
        try {
            collectively(*world_, [&] {
                if (rank() != size() - 1) return;
                if (lacks_memory) throw OutOfMemoryError("cannot allocate {} bytes", 7);
                throw DeviceError("broken");
            });
            FAIL() << "nothing was thrown";
        } catch (const AgreedError& error) {
            EXPECT_EQ(error.cause(), lacks_memory ? Cause::out_of_memory : Cause::other);
            EXPECT_EQ(error.exit_code(), ExitCode::device);
        }
    }
}

TEST(Topology, CountsEveryRankOnce) {
    const Topology& topology = session().topology();
    const auto world = session().host_world();
    ASSERT_EQ(topology.hosts.size(), static_cast<std::size_t>(world->size()));
    ASSERT_EQ(topology.nodes_by_rank.size(), topology.hosts.size());
    EXPECT_EQ(topology.node, topology.nodes_by_rank[static_cast<std::size_t>(world->rank())]);
    double leaders = topology.local_rank == 0 ? 1 : 0;
    all_reduce_sum(*world, {&leaders, 1});
    EXPECT_EQ(leaders, topology.nodes);
    EXPECT_EQ(process_rank(), world->rank());
}

}  // namespace
}  // namespace sherd::tests
