/// What is told of a GPU that does not fare well, and that it is told once.
#include "train/ailments.hpp"

#include <gtest/gtest.h>

namespace sherd {
namespace {

GpuHealth health(std::optional<std::string> throttling, std::int64_t errors) {
    GpuHealth h;
    h.throttling = std::move(throttling);
    h.ecc_errors = errors;
    return h;
}

TEST(GpuAilments, EachIsToldOnceWhicheverCameFirst) {
    GpuAilments of_one, of_another;
    EXPECT_EQ(of_one.news(health("", 0)), "");
    EXPECT_EQ(of_one.news(health("", 2)), "has 2 uncorrected memory error(s)");
    EXPECT_EQ(of_one.news(health("thermal", 3)), "is held down by thermal");
    EXPECT_EQ(of_one.news(health("thermal", 3)), "");
    EXPECT_EQ(of_another.news(health("power, thermal", 1)), "is held down by power, thermal and has 1 uncorrected memory error(s)");
    EXPECT_EQ(of_another.news(health("power, thermal", 1)), "");
}

TEST(GpuAilments, PowerLimitsAndWhatIsNotKnownAreNone) {
    GpuAilments ailments;
    EXPECT_EQ(ailments.news(health("power", 0)), "");
    EXPECT_EQ(ailments.news(health(std::nullopt, -1)), "");
    EXPECT_EQ(ailments.news(health("thermal", 0)), "is held down by thermal");
}

}  // namespace
}  // namespace sherd
