/// Units, flat layouts and interval tables: every parameter once, every element owned once, whatever the numbers.
#include "sherd/model/config.hpp"
#include "sherd/model/parameters.hpp"
#include "sherd/runtime/error.hpp"
#include "sherd/sharding/flat_layout.hpp"
#include "sherd/tensor/interval.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace sherd {
namespace {

ModelConfig model(bool tied) {
    ModelConfig c;
    c.vocabulary = 61;
    c.hidden = 28;
    c.intermediate = 40;
    c.layers = 2;
    c.heads = 3;
    c.kv_heads = 1;
    c.head_dim = 8;
    c.tied = tied;
    return c;
}

std::vector<std::string> names(const UnitSpec& unit) {
    std::vector<std::string> all;
    for (const ParameterSpec& p : unit.parameters) all.push_back(p.name);
    return all;
}

TEST(ParameterUnits, untied) {
    const auto units = parameter_units(model(false));
    ASSERT_EQ(units.size(), 4u);
    EXPECT_EQ(names(units[0]), (std::vector<std::string>{"model.embed_tokens.weight"}));
    EXPECT_EQ(names(units[3]), (std::vector<std::string>{"model.norm.weight", "lm_head.weight"}));
    // 2 * 61*28 + 28 + 2 * (2*28 + 24*28 + 2 * 8*28 + 28*24 + 3 * 28*40)
    EXPECT_EQ(parameter_count(units), 3416 + 28 + 2 * (56 + 672 + 448 + 672 + 3360));
}

TEST(ParameterUnits, tied) {
    const auto units = parameter_units(model(true));
    ASSERT_EQ(units.size(), 3u);
    EXPECT_EQ(units[0].name, "outer");
    EXPECT_EQ(names(units[0]), (std::vector<std::string>{"model.embed_tokens.weight", "model.norm.weight"}));
    EXPECT_EQ(parameter_count(units), 1708 + 28 + 2 * (56 + 672 + 448 + 672 + 3360));
}

TEST(ParameterUnits, a_block) {
    const UnitSpec block = parameter_units(model(false))[2];
    const std::string p = "model.layers.1.";
    const std::vector<std::pair<std::string, std::vector<std::int64_t>>> expected{
        {"input_layernorm.weight", {28}},     {"self_attn.q_proj.weight", {24, 28}}, {"self_attn.k_proj.weight", {8, 28}},
        {"self_attn.v_proj.weight", {8, 28}}, {"self_attn.o_proj.weight", {28, 24}}, {"post_attention_layernorm.weight", {28}},
        {"mlp.gate_proj.weight", {40, 28}},   {"mlp.up_proj.weight", {40, 28}},      {"mlp.down_proj.weight", {28, 40}}};
    ASSERT_EQ(block.parameters.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(block.parameters[i].name, p + expected[i].first);
        EXPECT_EQ(block.parameters[i].shape, expected[i].second);
        EXPECT_EQ(block.parameters[i].decays(), expected[i].second.size() == 2);  // norms do not
    }
}

TEST(FlatLayout, parameters_start_at_256_bytes_and_do_not_meet) {
    for (const bool tied : {false, true}) {
        const auto units = parameter_units(model(tied));
        const FlatLayout layout(units);
        EXPECT_EQ(layout.parameter_count(), parameter_count(units));
        std::int64_t next = 0;
        std::set<std::string> seen;
        for (const ParameterPlace place : layout.places()) {
            const FlatParameter& p = layout.at(place);
            const std::int64_t at = layout.unit(place.unit).begin + p.begin;
            EXPECT_EQ(at % 128, 0) << p.spec.name;  // 128 elements of two bytes
            EXPECT_GE(at, next) << p.spec.name;
            EXPECT_LT(at - next, 128) << p.spec.name;
            EXPECT_EQ(p.elements, p.spec.elements());
            next = at + p.elements;
            EXPECT_TRUE(seen.insert(p.spec.name).second) << p.spec.name;
        }
        EXPECT_GE(layout.elements(), next);
        EXPECT_LT(layout.elements() - next, 128);
        for (const FlatUnit& unit : layout.units()) EXPECT_EQ(unit.elements % 128, 0) << unit.name;
        std::size_t specified = 0;
        for (const UnitSpec& unit : units) specified += unit.parameters.size();
        EXPECT_EQ(seen.size(), specified);
    }
}

void expect_cover(const IntervalTable& table, std::int64_t n, const std::vector<double>& shares, std::int64_t alignment) {
    ASSERT_EQ(table.size(), shares.size());
    const double total = std::accumulate(shares.begin(), shares.end(), 0.0);
    const std::int64_t blocks = (n + alignment - 1) / alignment;
    std::int64_t next = 0;
    for (std::size_t r = 0; r < table.size(); ++r) {
        EXPECT_EQ(table[r].begin, next) << "rank " << r;
        EXPECT_GE(table[r].size(), 0);
        EXPECT_TRUE(table[r].end == n || table[r].end % alignment == 0) << "rank " << r << " ends at " << table[r].end;
        next = table[r].end;
        EXPECT_TRUE(shares[r] > 0 || table[r].empty()) << "rank " << r;
        const double mine = std::ceil(static_cast<double>(table[r].size()) / static_cast<double>(alignment));
        EXPECT_LE(std::abs(mine - shares[r] / total * static_cast<double>(blocks)), 1 + 1e-9) << "rank " << r;
    }
    EXPECT_EQ(next, n);
}

TEST(IntervalTable, covers_everything_once) {
    std::mt19937 random(7);
    for (int round = 0; round < 3000; ++round) {
        const auto alignment = std::vector<std::int64_t>{1, 4, 128}[random() % 3];
        const auto n = static_cast<std::int64_t>(random() % (round % 2 == 0 ? 40 : 100000));
        std::vector<double> shares(1 + random() % 9);
        for (double& share : shares) share = random() % 4 == 0 ? 0.0 : static_cast<double>(1 + random() % 1000) / 7.0;
        shares[random() % shares.size()] = 1.5;
        SCOPED_TRACE(::testing::Message() << "n " << n << ", alignment " << alignment << ", shares " << ::testing::PrintToString(shares));
        expect_cover(split_by_shares(n, shares, alignment), n, shares, alignment);
        if (HasFailure()) return;
    }
}

TEST(IntervalTable, equal_parts) {
    EXPECT_EQ(split_equally(512, 4, 128), (IntervalTable{{0, 128}, {128, 256}, {256, 384}, {384, 512}}));
    EXPECT_EQ(split_equally(300, 1, 128), (IntervalTable{{0, 300}}));
    for (int ranks = 1; ranks < 40; ++ranks)
        for (const std::int64_t n : {0, 1, 127, 128, 129, 1000, 4096})
            expect_cover(split_equally(n, ranks, 128), n, std::vector<double>(static_cast<std::size_t>(ranks), 1.0), 128);
}

TEST(IntervalTable, more_ranks_than_blocks) {
    const IntervalTable table = split_equally(200, 5, 128);  // two blocks
    std::int64_t owners = 0;
    for (const Interval& i : table) owners += i.empty() ? 0 : 1;
    EXPECT_EQ(owners, 2);
}

TEST(IntervalTable, shares_that_say_nothing) {
    EXPECT_THROW(split_by_shares(10, {}, 1), UsageError);
    EXPECT_THROW(split_by_shares(10, {0, 0}, 1), UsageError);
    EXPECT_THROW(split_by_shares(10, {1, -1}, 1), UsageError);
    EXPECT_THROW(split_by_shares(10, {3, -1}, 1), UsageError);
    EXPECT_THROW(split_by_shares(10, {1, std::numeric_limits<double>::quiet_NaN()}, 1), UsageError);
    EXPECT_THROW(split_by_shares(10, {1, std::numeric_limits<double>::infinity()}, 1), UsageError);
}

TEST(Interval, intersection) {
    EXPECT_EQ(intersect({0, 10}, {5, 20}), (Interval{5, 10}));
    EXPECT_EQ(intersect({5, 20}, {0, 10}), (Interval{5, 10}));
    EXPECT_TRUE(intersect({0, 5}, {5, 9}).empty());
    EXPECT_TRUE(intersect({0, 2}, {7, 9}).empty());
    EXPECT_EQ(intersect({0, 2}, {7, 9}).size(), 0);
}

}  // namespace
}  // namespace sherd
