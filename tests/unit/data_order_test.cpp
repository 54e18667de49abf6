#include "sherd/data/order.hpp"
#include "sherd/runtime/error.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace sherd {
namespace {

std::vector<std::int64_t> image(std::int64_t n, std::uint64_t seed, std::int64_t epoch) {
    const Permutation p(n, seed, epoch);
    std::vector<std::int64_t> out;
    for (std::int64_t i = 0; i < n; ++i) out.push_back(p(i));
    return out;
}

void expect_permutation(std::vector<std::int64_t> values) {
    std::sort(values.begin(), values.end());
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], static_cast<std::int64_t>(i)) << "n = " << values.size();
}

const auto unit_length = [](std::int64_t) { return std::int64_t{1}; };

TEST(Permutation, IsOneForEveryCount) {
    for (std::int64_t n = 1; n <= 200; ++n)
        for (std::int64_t epoch = 0; epoch < 3; ++epoch) expect_permutation(image(n, 1234, epoch));
    for (const std::int64_t n : {4095, 4096, 4097, 65537, 300007}) expect_permutation(image(n, 7, 1));
}

TEST(Permutation, StaysInRangeForHugeCounts) {
    const std::int64_t n = (std::int64_t{1} << 40) + 12345;
    const Permutation p(n, 1, 0);
    std::vector<std::int64_t> seen;
    for (std::int64_t i = 0; i < 10000; ++i) seen.push_back(p(n - 1 - i));
    std::sort(seen.begin(), seen.end());
    EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end());
    EXPECT_GE(seen.front(), 0);
    EXPECT_LT(seen.back(), n);
}

TEST(Permutation, DiffersByEpochAndSeed) {
    const auto base = image(100, 1234, 0);
    EXPECT_NE(base, image(100, 1234, 1));
    EXPECT_NE(base, image(100, 1235, 0));
    EXPECT_NE(image(100, 1234, 1), image(100, 1235, 0));
    EXPECT_EQ(base, image(100, 1234, 0));
    std::vector<std::int64_t> identity(100);
    std::iota(identity.begin(), identity.end(), 0);
    EXPECT_NE(base, identity);
}

/// The mean displacement of a random permutation of n is (n^2 - 1) / 3n; each value lands anywhere equally often.
TEST(Permutation, LooksRandom) {
    const std::int64_t n = 1000, epochs = 200;
    double displacement = 0;
    std::vector<int> tenths(10);
    for (std::int64_t e = 0; e < epochs; ++e) {
        const Permutation p(n, 99, e);
        for (std::int64_t i = 0; i < n; ++i) displacement += static_cast<double>(std::abs(p(i) - i));
        ++tenths[static_cast<std::size_t>(p(0) / 100)];
    }
    EXPECT_NEAR(displacement / static_cast<double>(n * epochs), 333.333, 5.0);
    for (const int count : tenths) EXPECT_NEAR(count, 20, 18);  // 4 standard deviations of a binomial(200, 0.1)
}

/// Computed apart, in Python, from the published constants of splitmix64: an order that changes would break every resume.
TEST(Permutation, IsStable) {
    EXPECT_EQ(image(10, 1234, 0), (std::vector<std::int64_t>{6, 4, 9, 8, 5, 7, 3, 2, 1, 0}));
    EXPECT_EQ(image(10, 1234, 1), (std::vector<std::int64_t>{2, 0, 7, 3, 4, 6, 9, 8, 5, 1}));
    EXPECT_EQ(Permutation(1000000007, 42, 3)(123456789), 56177723);
}

TEST(Permutation, RefusesNothing) {
    EXPECT_THROW(Permutation(0, 1, 0), UsageError);
    EXPECT_THROW(DocumentOrder(0, 1, true), UsageError);
}

TEST(DocumentOrder, TakesEveryDocumentOncePerEpoch) {
    const DocumentOrder order(37, 5, true);
    for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
        std::vector<std::int64_t> documents;
        for (std::int64_t i = 0; i < 37; ++i) documents.push_back(order.at(epoch * 37 + i));
        EXPECT_EQ(documents, image(37, 5, epoch));
    }
    EXPECT_EQ(order.at(3), image(37, 5, 0)[3]);  // back to an epoch that is no longer remembered
}

TEST(DocumentOrder, FileOrderWithoutShuffle) {
    const DocumentOrder order(3, 5, false);
    for (std::int64_t p = 0; p < 9; ++p) EXPECT_EQ(order.at(p), p % 3);
}

TEST(StepDocuments, WrapsAroundWithoutAShortStep) {  // case C24: 7 documents, 16 a step
    const DocumentOrder order(7, 1, false);
    const auto step = step_documents(order, 16, {16, 0}, unit_length);
    ASSERT_EQ(step.size(), 16u);
    for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(step[i], static_cast<std::int64_t>((16 + i) % 7));
}

TEST(StepDocuments, TokensStayWithinTheLimit) {
    const DocumentOrder order(5, 1, false);
    const std::vector<std::int64_t> lengths{10, 20, 30, 100, 5};
    const auto length = [&](std::int64_t i) { return lengths[static_cast<std::size_t>(i)]; };
    const StepSize size{0, 60};
    using Documents = std::vector<std::int64_t>;
    EXPECT_EQ(step_documents(order, 0, size, length), (Documents{0, 1, 2}));  // exactly 60
    EXPECT_EQ(step_documents(order, 3, size, length), (Documents{3}));        // longer than the limit: at least one
    EXPECT_EQ(step_documents(order, 4, size, length), (Documents{4, 0, 1}));  // on into the next epoch
    EXPECT_THROW(step_documents(order, 0, {0, 0}, length), UsageError);
    EXPECT_THROW(step_documents(order, 0, {0, std::numeric_limits<std::int64_t>::max()}, unit_length), UsageError);
}

TEST(StepsIn, RoundsUp) {
    const DocumentOrder seven(7, 1, true), ten(10, 1, true);
    EXPECT_EQ(steps_in(1, seven, {4, 0}, unit_length), 2);
    EXPECT_EQ(steps_in(2, seven, {4, 0}, unit_length), 4);
    EXPECT_EQ(steps_in(0.01, seven, {4, 0}, unit_length), 1);
    EXPECT_EQ(steps_in(1.1, ten, {1, 0}, unit_length), 11);
    EXPECT_EQ(steps_in(1, ten, {16, 0}, unit_length), 1);
    for (const double bad : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
        EXPECT_THROW(steps_in(bad, ten, {1, 0}, unit_length), UsageError);
}

TEST(StepsIn, AgreesWithWalkingTheSteps) {
    const DocumentOrder order(101, 3, true);
    const auto length = [](std::int64_t i) { return 1 + (i * 7919) % 97; };
    for (const std::int64_t limit : {1, 50, 97, 400, 100000})
        for (const double epochs : {0.5, 1.0, 3.0}) {
            const auto positions = static_cast<std::int64_t>(std::ceil(epochs * 101));
            std::int64_t steps = 0;
            for (std::int64_t p = 0; p < positions; ++steps)
                p += static_cast<std::int64_t>(step_documents(order, p, {0, limit}, length).size());
            EXPECT_EQ(steps_in(epochs, order, {0, limit}, length), steps) << limit << " tokens, " << epochs << " epochs";
        }
}

TEST(StepsIn, ReadsEachLengthOncePerEpoch) {
    const DocumentOrder order(1000, 3, true);
    std::int64_t calls = 0;
    const auto length = [&](std::int64_t) { return ++calls, std::int64_t{10}; };
    EXPECT_EQ(steps_in(2, order, {0, 20}, length), 1000);
    EXPECT_EQ(calls, 2000);
}

}  // namespace
}  // namespace sherd
