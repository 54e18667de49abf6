#include "train/decision.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace sherd {

namespace {
constexpr std::size_t head = 11;  // scalar fields before the squares

std::vector<double> flatten(const StepVote& v) {
    std::vector<double> flat{v.loss_sum,      v.next_targets, v.memory_bytes, v.stop_signal, v.time_is_up, v.checkpoint_due,
                             v.temperature_c, v.power_w,      v.throttled,    v.ecc_errors,  v.health_due};
    flat.insert(flat.end(), v.squares.begin(), v.squares.end());
    return flat;
}
/// A sum of what is known, -1 where nothing is.
void add_known(double& sum, double value) {
    if (value >= 0) sum = std::max(sum, 0.0) + value;
}
}  // namespace

bool StepVote::finite() const {
    return std::isfinite(loss_sum) && std::all_of(squares.begin(), squares.end(), [](double s) { return std::isfinite(s); });
}

StepVote decide(Communicator& communicator, const StepVote& mine) {
    const std::vector<double> flat = flatten(mine);
    const auto all = communicator.exchange({reinterpret_cast<const char*>(flat.data()), flat.size() * sizeof(double)});
    StepVote whole;
    whole.squares.assign(mine.squares.size(), 0.0);
    std::vector<double> one(flat.size());
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
        if (all[rank].size() != flat.size() * sizeof(double))
            throw DeviceError("rank {} is at another point of the step than rank {}", rank, communicator.rank());
        std::memcpy(one.data(), all[rank].data(), all[rank].size());
        whole.loss_sum += one[0];
        whole.next_targets += one[1];
        whole.memory_bytes = std::max(whole.memory_bytes, one[2]);
        whole.stop_signal = std::max(whole.stop_signal, one[3]);
        if (rank == 0) {
            whole.time_is_up = one[4];
            whole.checkpoint_due = one[5];
            whole.health_due = one[10];
        }
        whole.temperature_c = std::max(whole.temperature_c, one[6]);
        add_known(whole.power_w, one[7]);
        add_known(whole.throttled, one[8]);
        add_known(whole.ecc_errors, one[9]);
        for (std::size_t u = 0; u < whole.squares.size(); ++u) whole.squares[u] += one[head + u];
    }
    return whole;
}

}  // namespace sherd
