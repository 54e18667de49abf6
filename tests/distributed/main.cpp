/// gtest under MPI: every rank runs every test, rank 0 speaks for all, and all ranks end with the same code.
#include "world.hpp"

#include "sherd/comm/communicator.hpp"
#include "sherd/runtime/error.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>

namespace sherd::tests {
namespace {

const Session* the_session = nullptr;

std::string failures_of(const ::testing::TestResult& result) {
    std::string all;
    for (int i = 0; i < result.total_part_count(); ++i) {
        const ::testing::TestPartResult& part = result.GetTestPartResult(i);
        if (!part.failed()) continue;
        all += fmt::format("{}:{}: {}\n", part.file_name() == nullptr ? "?" : part.file_name(), part.line_number(), part.message());
    }
    return all;
}

/// After each test every rank hears of every other rank's failures and fails too: rank 0's report, the only one, holds them all.
class ShareFailures : public ::testing::EmptyTestEventListener {
  public:
    explicit ShareFailures(Communicator& world) : world_(world) {}
    void OnTestEnd(const ::testing::TestInfo& test) override {
        const auto failures = world_.exchange(failures_of(*test.result()));
        for (std::size_t rank = 0; rank < failures.size(); ++rank)
            if (!failures[rank].empty() && static_cast<int>(rank) != world_.rank())
                ADD_FAILURE() << "rank " << rank << ": " << failures[rank];
    }

  private:
    Communicator& world_;
};

int run_all(Communicator& world) {
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    if (world.rank() != 0) {
        delete listeners.Release(listeners.default_result_printer());
        delete listeners.Release(listeners.default_xml_generator());
    }
    listeners.Append(new ShareFailures(world));  // events that end a test reach the last listener first: before anything is printed
    const bool failed = RUN_ALL_TESTS() != 0;
    return any_of_ranks(world, failed) ? 1 : 0;
}

}  // namespace

const Session& session() {
    return *the_session;
}

}  // namespace sherd::tests

int main(int argc, char** argv) {
    ::testing::InitGoogleTest(&argc, argv);
    try {
        const sherd::Session session;
        sherd::tests::the_session = &session;
        const auto world = session.host_world();
        return sherd::tests::run_all(*world);
    } catch (const sherd::Error& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return static_cast<int>(error.exit_code());
    }
}
