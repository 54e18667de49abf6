/// gtest's main. With EMU_PLACES=FILE it also writes which barriers and waits each test reached, for test_mutants.py.
#include "harness/execution.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

/// A line a test: milliseconds, name, places; tabs between.
class Places : public testing::EmptyTestEventListener {
  public:
    explicit Places(const char* path) : file_(std::fopen(path, "w")) {}
    ~Places() override {
        if (file_ != nullptr) std::fclose(file_);
    }
    void OnTestStart(const testing::TestInfo&) override {
        emu::places().clear();
        start_ = std::chrono::steady_clock::now();
    }
    void OnTestEnd(const testing::TestInfo& test) override {
        if (file_ == nullptr) return;
        const auto passed = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start_);
        std::fprintf(file_, "%lld\t%s.%s", static_cast<long long>(passed.count()), test.test_suite_name(), test.name());
        for (const std::string& place : emu::places()) std::fprintf(file_, "\t%s", place.c_str());
        std::fprintf(file_, "\n");
    }

  private:
    std::FILE* file_;
    std::chrono::steady_clock::time_point start_;
};

}  // namespace

int main(int argc, char** argv) {
    testing::InitGoogleTest(&argc, argv);
    if (const char* path = std::getenv("EMU_PLACES")) testing::UnitTest::GetInstance()->listeners().Append(new Places(path));
    return RUN_ALL_TESTS();
}
