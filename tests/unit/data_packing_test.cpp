#include "sherd/data/packing.hpp"
#include "sherd/runtime/error.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

namespace sherd {
namespace {

std::int64_t tokens_of(const StepPlan& plan, std::size_t rank, const std::vector<std::int64_t>& lengths) {
    std::int64_t sum = 0;
    for (const auto& batch : plan.micro_batches[rank])
        for (const std::int32_t d : batch) sum += lengths[static_cast<std::size_t>(d)];
    return sum;
}

/// What holds for every plan: each document once, capacities, as many micro-batches everywhere, nothing for ranks without a share.
void expect_sound(const StepPlan& plan, const std::vector<std::int64_t>& lengths, const std::vector<RankBudget>& ranks) {
    ASSERT_EQ(plan.micro_batches.size(), ranks.size());
    ASSERT_GE(plan.micro_steps(), 1);
    std::vector<int> seen(lengths.size());
    std::size_t needed = 1;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
        ASSERT_EQ(static_cast<std::int64_t>(plan.micro_batches[r].size()), plan.micro_steps());
        for (std::size_t m = 0; m < plan.micro_batches[r].size(); ++m) {
            const auto& batch = plan.micro_batches[r][m];
            std::int64_t sum = 0;
            for (const std::int32_t d : batch) {
                ++seen.at(static_cast<std::size_t>(d));
                sum += lengths[static_cast<std::size_t>(d)];
            }
            EXPECT_LE(sum, ranks[r].micro_tokens);
            EXPECT_TRUE(std::is_sorted(batch.begin(), batch.end()));
            if (!batch.empty()) {
                EXPECT_GT(ranks[r].share, 0);
                needed = std::max(needed, m + 1);
            }
        }
    }
    EXPECT_EQ(static_cast<std::size_t>(plan.micro_steps()), needed) << "a micro-step that is empty on every rank";
    for (const int count : seen) EXPECT_EQ(count, 1);
}

TEST(PlanStep, RandomStepsAreSoundAndBalanced) {
    std::mt19937 random(20240607);
    for (int trial = 0; trial < 300; ++trial) {
        std::vector<std::int64_t> lengths(random() % 80);
        for (auto& length : lengths) length = 1 + random() % 500;
        std::vector<RankBudget> ranks(1 + random() % 7);
        const double shares[] = {1, 1, 2, 5, 0};
        for (auto& rank : ranks) rank = {500 + static_cast<std::int64_t>(random() % 1500), shares[random() % 5]};
        ranks[random() % ranks.size()].share = 1;
        const StepPlan plan = plan_step(lengths, ranks);
        expect_sound(plan, lengths, ranks);
        const std::int64_t longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
        for (std::size_t a = 0; a < ranks.size(); ++a)  // no rank would be better off giving a document to another one
            for (std::size_t b = 0; b < ranks.size(); ++b) {
                if (ranks[a].share == 0 || ranks[b].share == 0) continue;
                const double load_a = static_cast<double>(tokens_of(plan, a, lengths)) / ranks[a].share;
                const double load_b = static_cast<double>(tokens_of(plan, b, lengths) + longest) / ranks[b].share;
                EXPECT_LE(load_a, load_b * (1 + 1e-12));
            }
    }
}

TEST(PlanStep, IsDeterministic) {
    const std::vector<std::int64_t> lengths{5, 5, 5, 9, 9, 1, 1, 5};
    const std::vector<RankBudget> ranks{{10, 1}, {10, 1}, {10, 1}};
    EXPECT_EQ(plan_step(lengths, ranks).micro_batches, plan_step(lengths, ranks).micro_batches);
}

TEST(PlanStep, OneRankPacksFirstFitDecreasing) {
    const std::vector<std::int64_t> lengths{4, 7, 3, 6};
    const std::vector<RankBudget> ranks{{10, 1}};
    using Batches = std::vector<std::vector<std::int32_t>>;
    EXPECT_EQ(plan_step(lengths, ranks).micro_batches[0], (Batches{{1, 2}, {0, 3}}));  // 7+3, 6+4
}

TEST(PlanStep, FewerDocumentsThanRanks) {  // case C24
    const std::vector<std::int64_t> lengths{8, 3};
    const std::vector<RankBudget> ranks(5, RankBudget{8, 1});
    const StepPlan plan = plan_step(lengths, ranks);
    expect_sound(plan, lengths, ranks);
    EXPECT_EQ(plan.micro_steps(), 1);
    EXPECT_EQ(std::count_if(ranks.begin(), ranks.end(),
                            [&, r = std::size_t{0}](const RankBudget&) mutable { return tokens_of(plan, r++, lengths) > 0; }),
              2);
}

TEST(PlanStep, NoDocumentAtAllIsOneEmptyMicroStep) {
    const std::vector<RankBudget> ranks(3, RankBudget{8, 1});
    expect_sound(plan_step({}, ranks), {}, ranks);
}

TEST(PlanStep, LongDocumentsGoWhereTheyFit) {
    const std::vector<std::int64_t> lengths{4000, 100, 100};
    const std::vector<RankBudget> ranks{{1024, 5}, {4096, 1}};
    const StepPlan plan = plan_step(lengths, ranks);
    expect_sound(plan, lengths, ranks);
    EXPECT_EQ(tokens_of(plan, 0, lengths), 200);
    EXPECT_EQ(tokens_of(plan, 1, lengths), 4000);
}

TEST(PlanStep, SharesSetTheWork) {
    const std::vector<std::int64_t> lengths(800, 10);
    const std::vector<RankBudget> ranks{{100, 1}, {100, 2}, {100, 5}, {100, 0}};
    const StepPlan plan = plan_step(lengths, ranks);
    expect_sound(plan, lengths, ranks);
    EXPECT_EQ(tokens_of(plan, 0, lengths), 1000);
    EXPECT_EQ(tokens_of(plan, 1, lengths), 2000);
    EXPECT_EQ(tokens_of(plan, 2, lengths), 5000);
}

TEST(PlanStep, SaysWhatDoesNotFit) {
    const std::vector<std::int64_t> lengths{10, 700};
    const std::vector<RankBudget> ranks{{512, 1}, {4096, 0}};
    try {
        plan_step(lengths, ranks);
        FAIL() << "accepted";
    } catch (const UsageError& error) {
        const std::string message = error.what();
        for (const char* part : {"700", "512", "batch.micro_tokens", "data.max_sequence"})
            EXPECT_NE(message.find(part), std::string::npos) << message;
    }
    const std::vector<RankBudget> none{{512, 0}, {512, 0}}, bad{{512, std::numeric_limits<double>::quiet_NaN()}};
    EXPECT_THROW(plan_step(lengths, none), UsageError);
    EXPECT_THROW(plan_step(lengths, bad), UsageError);
    EXPECT_THROW(plan_step(lengths, {}), UsageError);
}

TEST(PlanStep, ManyDocumentsTakeNoTime) {
    const std::vector<std::int64_t> lengths(100000, 51);
    const std::vector<RankBudget> ranks(2, RankBudget{100, 1});
    EXPECT_EQ(plan_step(lengths, ranks).micro_steps(), 50000);  // 50,000 batches of one: quadratic search would take minutes
}

}  // namespace
}  // namespace sherd
