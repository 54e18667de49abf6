#include "backend/cpu/idle_threads.hpp"

#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <omp.h>
#include <thread>

namespace sherd::cpu {

namespace {

/// A sleeping team of OpenMP threads. libgomp reads OMP_WAIT_POLICY when it is loaded, before any code of ours, and has no call for it; but
/// once it manages more threads than there are cores, it lets waiting threads sleep early. This team makes it count one thread too many.
class SleepingTeam {
  public:
    explicit SleepingTeam(int threads) : thread_([this, threads] { sleep(threads); }) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return made_; });
    }
    SleepingTeam(const SleepingTeam&) = delete;
    SleepingTeam& operator=(const SleepingTeam&) = delete;
    ~SleepingTeam() {
        {
            const std::lock_guard lock(mutex_);
            ending_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }

  private:
    void sleep(int threads) {
        int members = 0;
#pragma omp parallel num_threads(threads) reduction(+ : members)
        ++members;
        std::unique_lock lock(mutex_);
        made_ = members > 0;
        changed_.notify_all();
        changed_.wait(lock, [this] { return ending_; });
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    bool made_ = false, ending_ = false;
    std::thread thread_;
};

/// With more cores than this to spare, spinning takes nothing from anyone.
constexpr int most_sleepers = 32;

}  // namespace

void let_idle_threads_sleep(int threads) {
    if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
    // libgomp counts the initial thread and the members of each team but its first; one more than the cores is needed
    const int missing = omp_get_num_procs() + 1 - threads;
    if (threads < 2 || missing >= most_sleepers) return;
    static const SleepingTeam team(missing < 1 ? 2 : missing + 1);
}

}  // namespace sherd::cpu
