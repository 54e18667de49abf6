#include "train/timing.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

namespace sherd {

std::string Timing::table(Communicator& communicator, double total_seconds) const {
    static constexpr std::array<const char*, 7> names{
        "compute", "waiting for communication", "data", "optimizer", "checkpoint", "evaluation", "start and other"};
    std::array<double, names.size()> mine{};
    std::copy(seconds_.begin(), seconds_.end(), mine.begin());
    mine.back() = std::max(0.0, total_seconds - std::accumulate(seconds_.begin(), seconds_.end(), 0.0));
    const auto all = communicator.exchange({reinterpret_cast<const char*>(mine.data()), sizeof mine});
    std::string text = fmt::format("time in seconds over {} rank(s){:>13} {:>9} {:>9}\n", communicator.size(), "min", "average", "max");
    for (std::size_t phase = 0; phase < names.size(); ++phase) {
        double low = 1e300, high = 0, sum = 0;
        for (const std::string& bytes : all) {
            std::array<double, names.size()> one{};
            std::memcpy(one.data(), bytes.data(), sizeof one);
            low = std::min(low, one[phase]);
            high = std::max(high, one[phase]);
            sum += one[phase];
        }
        text += fmt::format("  {:<36} {:>9.2f} {:>9.2f} {:>9.2f}\n", names[phase], low, sum / static_cast<double>(all.size()), high);
    }
    text.pop_back();
    return text;
}

}  // namespace sherd
