#include "app/words.hpp"

#include "sherd/app/keys.hpp"

#include <gtest/gtest.h>

using namespace sherd;

TEST(Words, EditDistanceCountsEditsAndSwaps) {
    EXPECT_EQ(edit_distance("", ""), 0u);
    EXPECT_EQ(edit_distance("", "abc"), 3u);
    EXPECT_EQ(edit_distance("abc", ""), 3u);
    EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
    EXPECT_EQ(edit_distance("steps", "stpes"), 1u);
    EXPECT_EQ(edit_distance("ca", "abc"), 3u);  // optimal string alignment: no edit inside a swap
}

TEST(Words, NearestTakesTheFirstOfEquals) {
    EXPECT_EQ(nearest("trian", {"eval", "train", "brain"}), "train");
    EXPECT_EQ(nearest("x", {"a", "b"}), "a");
    EXPECT_EQ(nearest("x", {}), "");
}

TEST(Words, NearestKeyKnowsSpellingAndWrongSections) {
    EXPECT_EQ(nearest_key("run.stpes"), "run.steps");
    EXPECT_EQ(nearest_key("optimizer.steps"), "run.steps");
    EXPECT_EQ(nearest_key("optimiser.learning_rate"), "optimizer.learning_rate");
    EXPECT_EQ(nearest_key("optimizer.lerning_rate"), "optimizer.learning_rate");
    EXPECT_EQ(nearest_key("evaluation.evry"), "evaluation.every");
    EXPECT_EQ(nearest_key("shuffle"), "data.shuffle");
    EXPECT_EQ(nearest_key("optimizer.lr"), "optimizer.learning_rate");  // what other programs call it
    EXPECT_EQ(nearest_key("batch.size"), "batch.shares");               // in the section that was meant
    EXPECT_EQ(nearest_key("run.learning_rate"), "optimizer.learning_rate");
}
