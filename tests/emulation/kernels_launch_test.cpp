/// What launches refuse, and what they say of launches that fail.
#include "backend/cuda/launch.hpp"

#include "sherd/runtime/error.hpp"

#include <gtest/gtest.h>

#include <string>

namespace sherd::cuda {
namespace {

template <class F>
std::string message_of(const F& f) {
    try {
        f();
    } catch (const DeviceError& error) {
        return error.what();
    }
    return "";
}

std::string message_of_launch(cudaError_t code) {
    return message_of(
        [&] { check_launch(code, "void f() [with auto Kernel = sherd::cuda::{anonymous}::adamw_kernel<float>; A = int]", {}); });
}

TEST(Launch, ThatFailsIsNamed) {
    const std::string message = message_of_launch(cudaErrorInvalidConfiguration);
    EXPECT_TRUE(message.starts_with("the launch of adamw_kernel<float>, 1 x 1 x 1 blocks of 1 threads")) << message;
    EXPECT_NE(message.find("kernels_launch_test.cpp"), std::string::npos) << message;
    EXPECT_EQ(message_of_launch(cudaSuccess), "");
}

TEST(Launch, IsNotBlamedForWhatRanBefore) {
    for (const cudaError_t code :
         {cudaErrorIllegalAddress, cudaErrorLaunchFailure, cudaErrorMisalignedAddress, cudaErrorECCUncorrectable}) {
        const std::string message = message_of_launch(code);
        EXPECT_TRUE(message.starts_with("an operation before or at the launch of adamw_kernel<float>")) << message;
    }
}

TEST(Launch, RefusesGridsThatAreTooLarge) {
    EXPECT_EQ(blocks_for(0, 8), 0u);
    EXPECT_EQ(blocks_for(65535 * 8 + 1, 8), 65536u);
    EXPECT_EQ(blocks_for(0x7fffffff, 1), 0x7fffffffu);
    EXPECT_NE(message_of([] { blocks_for(0x80000000, 1); }).find("2147483648"), std::string::npos);
    EXPECT_EQ(few_blocks_for(65535 * 8, 8), 65535u);
    const std::string message = message_of([] { few_blocks_for(65535 * 8 + 1, 8); });
    EXPECT_NE(message.find("524281"), std::string::npos) << message;
    EXPECT_NE(message.find("524280 at most"), std::string::npos) << message;
}

}  // namespace
}  // namespace sherd::cuda
