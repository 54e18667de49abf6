#include "sherd/data/prefetch.hpp"
#include "sherd/runtime/error.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>

namespace sherd {
namespace {

/// Document i is one token of value i; document 13 cannot be read. Notes the order of reads.
class FakeGroup : public TokenGroup {
  public:
    const std::string& name() const override { return name_; }
    std::int64_t documents() const override { return 1000; }
    std::int64_t length(std::int64_t) const override { return 1; }
    Document read(std::int64_t i) const override {
        if (i == 13) throw InputError("document {} is damaged", i);
        if (delay.count() > 0) std::this_thread::sleep_for(delay);
        reads.push_back(i);
        ++count;
        Document document;
        document.index = i;
        document.tokens = {static_cast<std::int32_t>(i)};
        document.is_target = {0};
        return document;
    }
    GroupFacts scan(std::int64_t, std::int64_t) const override { return {}; }
    Digest digest(std::int64_t, std::int64_t) const override { return {}; }

    mutable std::vector<std::int64_t> reads;  ///< of the thread; looked at after take()
    mutable std::atomic<int> count{0};
    std::chrono::milliseconds delay{0};

  private:
    std::string name_ = "fake";
};

std::vector<std::int64_t> indices_of(const std::vector<Document>& documents) {
    std::vector<std::int64_t> out;
    for (const Document& d : documents) {
        EXPECT_EQ(d.tokens.at(0), d.index);
        out.push_back(d.index);
    }
    return out;
}
using Indices = std::vector<std::int64_t>;

TEST(StepReader, ReadsSortedAndReturnsAsAsked) {
    const FakeGroup group;
    StepReader reader(group);
    reader.request({9, 2, 500, 2, 7});
    EXPECT_EQ(indices_of(reader.take()), (Indices{9, 2, 500, 2, 7}));
    EXPECT_EQ(group.reads, (Indices{2, 7, 9, 500}));  // the double one is read once
}

TEST(StepReader, ServesRequestsInOrderAndEmptyOnes) {
    const FakeGroup group;
    StepReader reader(group);
    reader.request({1});
    reader.request({});
    reader.request({3, 2});
    EXPECT_EQ(indices_of(reader.take()), (Indices{1}));
    EXPECT_TRUE(reader.take().empty());
    EXPECT_EQ(indices_of(reader.take()), (Indices{3, 2}));
}

TEST(StepReader, CarriesErrorsOverAndGoesOn) {
    const FakeGroup group;
    StepReader reader(group);
    reader.request({1, 13});
    reader.request({4});
    EXPECT_THROW(reader.take(), InputError);
    EXPECT_EQ(indices_of(reader.take()), (Indices{4}));
    EXPECT_THROW(reader.take(), std::logic_error);
}

TEST(StepReader, WorksWhileNobodyWaits) {
    const FakeGroup group;
    StepReader reader(group);
    reader.request({1, 2, 3});
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (group.count < 3 && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(group.count, 3);
    EXPECT_EQ(reader.take().size(), 3u);
}

TEST(StepReader, DestructorStopsBetweenDocuments) {
    FakeGroup group;
    group.delay = std::chrono::milliseconds(20);
    {
        StepReader reader(group);
        Indices many(900);
        for (std::size_t i = 0; i < many.size(); ++i) many[i] = static_cast<std::int64_t>(i) + 14;
        reader.request(many);
        while (group.count == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_LT(group.count, 450);  // all of them would take 18 seconds
}

}  // namespace
}  // namespace sherd
