/// What would free memory: every figure is the plan made again.
#include "sharding_testing.hpp"
#include "train/memory_plan.hpp"

#include <gtest/gtest.h>

namespace sherd::tests {
namespace {

/// A small model on four ranks of two nodes, all of it replicated, in fp32.
class MemoryPlan : public ::testing::Test {
  protected:
    MemoryPlan() {
        inputs_.config = small_model(false, 3);
        inputs_.layout = std::make_unique<FlatLayout>(parameter_units(inputs_.config));
        inputs_.train.longest = 40;
        question = {&inputs_,
                    backend_.get(),
                    TrainingState::Purpose::training,
                    DType::f32,
                    plan_named("no_shard"),
                    make_groups({0, 0, 1, 1}, 0, {}, plan_named("no_shard")),
                    {.keep_gathered = false, .prefetch = true, .reduce = DType::f32, .gradients = DType::f32},
                    1,
                    100,
                    40};
    }
    std::uint64_t saved(const std::function<void(MemoryQuestion&)>& change) const {
        MemoryQuestion changed = question;
        change(changed);
        return total_bytes(planned_memory(question)) - total_bytes(planned_memory(changed));
    }
    std::uint64_t bytes_of(const std::string& name) const {
        for (const Saving& s : possible_savings(question))
            if (s.change.starts_with(name)) return s.bytes;
        return 0;
    }
    MemoryQuestion question;

  private:
    std::unique_ptr<Backend> backend_ = make_cpu_backend(1);
    Inputs inputs_;
};

TEST_F(MemoryPlan, SavingsAreDifferencesOfPlans) {
    EXPECT_EQ(bytes_of("batch.micro_tokens = 50"), saved([](auto& q) { q.micro_tokens = 50; }));
    EXPECT_EQ(bytes_of("sharding.strategy = full_shard"), saved([](auto& q) { q.plan = plan_named("full_shard"); }));
    EXPECT_GT(bytes_of("batch.micro_tokens"), 0u);
    EXPECT_GT(bytes_of("sharding.strategy"), 0u);
    question.options.keep_gathered = true;
    EXPECT_EQ(bytes_of("sharding.keep_gathered"), 0u) << "replicas gather nothing";
    EXPECT_EQ(bytes_of("sharding.strategy = full_shard"), 0u) << "gathered and kept it takes more than others";
    question.plan = plan_named("full_shard");
    EXPECT_EQ(bytes_of("sharding.keep_gathered"), saved([](auto& q) { q.options.keep_gathered = false; }));
    EXPECT_GT(bytes_of("sharding.keep_gathered"), 0u);
}

TEST_F(MemoryPlan, SavingsComeLargestFirst) {
    const auto savings = possible_savings(question);
    ASSERT_GE(savings.size(), 2u);
    for (std::size_t i = 1; i < savings.size(); ++i) EXPECT_GE(savings[i - 1].bytes, savings[i].bytes);
    const std::string text = savings_text(question);
    EXPECT_EQ(text.find(savings[0].change + " would free "), 0u) << text;
    EXPECT_NE(text.find(savings[1].change), std::string::npos) << text;
}

TEST_F(MemoryPlan, MicroBatchesAreNotMadeShorterThanADocument) {
    question.micro_tokens = 60;
    EXPECT_GT(bytes_of("batch.micro_tokens = 40"), 0u);
    question.micro_tokens = 40;
    EXPECT_EQ(bytes_of("batch.micro_tokens"), 0u);
}

TEST_F(MemoryPlan, LongDocumentsAreCutWhereTheyKeepMicroBatchesLong) {
    question.longest = 20000;
    question.micro_tokens = 20000;
    question.micro_tokens_auto = true;
    EXPECT_EQ(bytes_of("data.max_sequence = 9984 (cuts documents)"), saved([](auto& q) { q.longest = q.micro_tokens = 9984; }));
    EXPECT_GT(bytes_of("data.max_sequence"), 0u);
    question.longest = question.micro_tokens = 5000;
    EXPECT_EQ(bytes_of("data.max_sequence = 2496 (cuts documents)"), saved([](auto& q) { q.longest = 2496, q.micro_tokens = 4096; }))
        << "batch.micro_tokens = auto is never less than 4,096";
    EXPECT_GT(bytes_of("data.max_sequence"), 0u);
}

TEST_F(MemoryPlan, ADeckThatSaysMicroTokensChangesThemToo) {
    question.longest = 3000;
    question.micro_tokens = 4000;
    EXPECT_EQ(bytes_of("data.max_sequence = 1472 and batch.micro_tokens = 2000 (cuts documents)"),
              saved([](auto& q) { q.longest = 1472, q.micro_tokens = 2000; }));
    EXPECT_GT(bytes_of("data.max_sequence"), bytes_of("batch.micro_tokens = 3000"));
    question.longest = 2000;
    EXPECT_EQ(bytes_of("data.max_sequence"), 0u) << "the longest document does not stand in the way";
}

TEST_F(MemoryPlan, ARowOfOnesOwnIsChangedByItsKeys) {
    question.plan_by_keys = true;
    EXPECT_EQ(bytes_of("sharding.strategy"), 0u) << "these keys would win";
    EXPECT_EQ(bytes_of("sharding.parameters = world and sharding.gradients = world and sharding.optimizer = world"),
              saved([](auto& q) { q.plan = plan_named("full_shard"); }));
    question.plan = {Placement::replica, Placement::world, Placement::world};
    EXPECT_EQ(bytes_of("sharding.parameters = world"), saved([](auto& q) { q.plan = plan_named("full_shard"); }));
    EXPECT_GT(bytes_of("sharding.parameters"), 0u);
}

TEST_F(MemoryPlan, WhatACheckpointFixesIsNoAdviceToGoOnFromIt) {
    question.longest = question.micro_tokens = 5000;
    question.micro_tokens_auto = question.bf16_everywhere = true;
    for (const char* key : {"data.max_sequence", "precision.compute"}) {
        question.resumes = false;
        EXPECT_GT(bytes_of(key), 0u) << key;
        question.resumes = true;
        EXPECT_EQ(bytes_of(key), 0u) << key;
    }
    EXPECT_GT(bytes_of("sharding.strategy"), 0u);
}

TEST_F(MemoryPlan, ATypeThatSomeRankLacksIsNotNamed) {
    question.micro_tokens = 4000;
    EXPECT_EQ(bytes_of("precision.compute"), 0u);
    question.bf16_everywhere = true;
    EXPECT_EQ(bytes_of("precision.compute = bf16"), saved([](auto& q) { q.compute = DType::bf16; }));
    EXPECT_GT(bytes_of("precision.compute"), 0u);
}

TEST_F(MemoryPlan, StagingOfTheDeviceIsMpisToSpare) {
    EXPECT_EQ(bytes_of("communication.backend"), 0u);
    question.device_staging = 48u << 20;
    EXPECT_EQ(bytes_of("communication.backend = mpi"), 48u << 20);
}

TEST_F(MemoryPlan, SaysSoWhereNoKeyHelps) {
    question.micro_tokens = 40;
    question.plan = plan_named("full_shard");
    question.options = {.keep_gathered = false, .prefetch = true, .reduce = DType::f32, .gradients = DType::bf16};
    question.compute = DType::bf16;
    EXPECT_NE(savings_text(question).find("no key of the deck"), std::string::npos) << savings_text(question);
}

TEST_F(MemoryPlan, ClassesAreListedLargestFirst) {
    EXPECT_EQ(largest_first({{"sums", DType::f64, 512}, {"weights", DType::f32, 3u << 20}, {"exp_avg", DType::f32, 5u << 20}}),
              "exp_avg 5.0 MiB, weights 3.0 MiB, sums 512 bytes");
}

}  // namespace
}  // namespace sherd::tests
