// What needs no GPU of choosing one.
#include "sherd/backend/devices.hpp"
#include "sherd/runtime/error.hpp"

#include <cctype>
#include <fstream>
#include <map>
#include <sstream>

namespace sherd {

std::string Gpu::description() const {
    std::string text = fmt::format("cuda: {}, sm_{}{}, {:.1f} GiB", name, major, minor, static_cast<double>(memory_bytes) / (1 << 30));
    if (clock_mhz > 0) text += fmt::format(", {} MHz", clock_mhz);
    if (memory_clock_mhz > 0) text += fmt::format(", memory {} MHz", memory_clock_mhz);
    text += ecc ? ", ECC on" : ", ECC off";
    if (!driver.empty()) text += ", driver " + driver;
    return text;
}

int choose_gpu(int visible, int local_rank) noexcept {
    return visible <= 1 ? 0 : local_rank % visible;
}

std::string machine_id() {
    std::ifstream file("/proc/sys/kernel/random/boot_id");
    std::string id;
    return std::getline(file, id) && !id.empty() ? id : host_name();
}

std::optional<std::pair<int, int>> first_duplicate(const std::vector<std::string>& claims_by_rank) {
    std::map<std::string, int> first;
    for (int rank = 0; rank < static_cast<int>(claims_by_rank.size()); ++rank) {
        const std::string& claim = claims_by_rank[static_cast<std::size_t>(rank)];
        if (claim.empty()) continue;
        const auto [found, is_new] = first.emplace(claim, rank);
        if (!is_new) return std::pair(found->second, rank);
    }
    return std::nullopt;
}

int code_for(const std::string& architectures, int major, int minor) {
    std::istringstream list(architectures);
    int best = 0, last = 0;
    bool last_is_specific = false;  // "90a": its PTX runs nowhere else
    for (std::string one; list >> one;) {
        last_is_specific = std::isdigit(static_cast<unsigned char>(one.back())) == 0;
        last = std::atoi(one.c_str());
        if (last / 10 == major && (last_is_specific ? last % 10 == minor : last % 10 <= minor)) best = std::max(best, last);
    }
    if (best > 0) return best;
    return !last_is_specific && 10 * major + minor >= last ? last : 0;
}

bool code_runs_on(const std::string& architectures, int major, int minor) {
    return code_for(architectures, major, minor) > 0;
}

}  // namespace sherd
