// Each fault is seeded in a kernel of faulty_kernels.cu: the faulty form must be reported in every order of threads, the sound one
// never.
#include "faulty_kernels.hpp"
#include "support.hpp"

#include <gtest/gtest.h>

namespace {

struct Case {
    const char *kernel, *says;
    bool needs_checker;  // found by access_check.cpp only; else by the execution itself
};

class Faults : public testing::TestWithParam<Case> {};

TEST_P(Faults, AreReportedInEveryOrder) {
    const Case& c = GetParam();
    if (c.needs_checker && emu::observer == nullptr) GTEST_SKIP() << "needs the checked build";
    for (const unsigned seed : {0U, 1U, 2U, 3U, 4U}) {
        emu::options.seed = seed;
        Buffer<float> out(std::vector<float>(512, 0.0F)), unrelated(64);
        EXPECT_NO_THROW(faulty::run(c.kernel, out, true));
        try {
            faulty::run(c.kernel, out, false);
            ADD_FAILURE() << c.kernel << " was not noticed, seed " << seed;
        } catch (const emu::Fault& f) {
            if (seed == 0) std::printf("    %s\n", f.what());
            EXPECT_NE(std::string(f.what()).find(c.says), std::string::npos) << f.what();
        }
    }
    emu::options.seed = 0;
}

INSTANTIATE_TEST_SUITE_P(Seeded, Faults,
                         testing::Values(Case{"exits_before_barrier", "exit", false},  //
                                         Case{"skips_barrier", "exit", false},         //
                                         Case{"two_barriers", "divergent barrier", false},
                                         Case{"shared_race", "shared memory", true},  // or first seen as a read of what is not yet written
                                         Case{"warp_race", "race on shared", true},   //
                                         Case{"missing_second_barrier", "race on shared", true},
                                         Case{"global_race", "of another block", true},  //
                                         Case{"counts", "race on global", true},         //
                                         Case{"uninitialized", "nobody in the block has written", true},
                                         Case{"static_overrun", "index 64 out of bounds", true},  //
                                         Case{"dynamic_overrun", "of dynamic shared memory", true},
                                         Case{"inactive_lane", "takes no part", false},                                            //
                                         Case{"lane_not_in_mask", "not in its mask", false}, Case{"absent_lane", "hangs", false},  //
                                         Case{"misaligned", "access misaligned by 4 of 16 B", true},                               //
                                         Case{"layout_assumed", "not aligned to 32 B", false},
                                         Case{"copy_not_awaited", "nobody in the block has written", true}),
                         [](const auto& info) { return std::string(info.param.kernel); });

TEST(GlobalMemory, OverrunOfAllBuffersIsReported) {
    if (emu::observer == nullptr) GTEST_SKIP() << "needs the checked build";
    Buffer<float> out(64);
    EXPECT_THROW(faulty::run("global_overrun", out, false), emu::Fault);
    EXPECT_NO_THROW(faulty::run("global_overrun", out, true));
}

#ifdef __SANITIZE_ADDRESS__
TEST(AddressSanitizerDeath, SeesOverrunsOfSharedAndGlobalMemory) {
    Buffer<float> out(64);
    for (const char* kernel : {"static_overrun_by_pointer", "dynamic_overrun", "global_overrun"}) {
        EXPECT_NO_THROW(faulty::run(kernel, out, true));
        EXPECT_DEATH(faulty::run(kernel, out, false), "AddressSanitizer") << kernel;
    }
    EXPECT_DEATH(faulty::run("misaligned", out, false), "misaligned");
}
#endif

}  // namespace
