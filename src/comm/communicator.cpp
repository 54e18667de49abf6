#include "sherd/comm/communicator.hpp"

#include <cstring>

namespace sherd {

void all_reduce_sum(Communicator& communicator, std::span<double> values) {
    if (communicator.size() == 1) return;
    const auto all = communicator.exchange({reinterpret_cast<const char*>(values.data()), values.size_bytes()});
    std::vector<double> total(values.size(), 0.0), one(values.size());
    for (const std::string& bytes : all) {
        if (bytes.size() != values.size_bytes())
            throw DeviceError("ranks disagree on the length of a sum: {} and {} bytes", bytes.size(), values.size_bytes());
        std::memcpy(one.data(), bytes.data(), bytes.size());
        for (std::size_t i = 0; i < one.size(); ++i) total[i] += one[i];
    }
    std::copy(total.begin(), total.end(), values.begin());
}

bool any_of_ranks(Communicator& communicator, bool value) {
    double flag = value ? 1 : 0;
    all_reduce_sum(communicator, {&flag, 1});
    return flag > 0;
}

std::string broadcast(Communicator& communicator, const std::string& value) {
    return communicator.exchange(communicator.rank() == 0 ? std::string_view(value) : std::string_view()).front();
}

void barrier(Communicator& communicator) {
    (void)communicator.exchange({});
}

void agree(Communicator& communicator, const Error* mine) {
    std::string report;
    if (mine != nullptr) report = std::string(1, static_cast<char>(mine->exit_code())) + host_name() + '\0' + mine->what();
    const auto reports = communicator.exchange(report);
    for (std::size_t rank = 0; rank < reports.size(); ++rank) {
        if (reports[rank].empty()) continue;
        const auto code = static_cast<ExitCode>(reports[rank][0]);
        const auto end_of_host = reports[rank].find('\0', 1);
        const std::string host = reports[rank].substr(1, end_of_host - 1), what = reports[rank].substr(end_of_host + 1);
        throw AgreedError(code, communicator.size() == 1 ? what : fmt::format("{} (rank {}, host {})", what, rank, host));
    }
}

namespace {

class SingleCommunicator final : public Communicator {
  public:
    int rank() const noexcept override { return 0; }
    int size() const noexcept override { return 1; }
    void reduce_scatter(Stream&, float*, const IntervalTable&, CollectiveTag) override {}
    void all_gather(Stream&, void*, std::size_t, const IntervalTable&, CollectiveTag) override {}
    std::vector<std::string> exchange(std::string_view mine) override { return {std::string(mine)}; }
    std::uint64_t staging_bytes() const noexcept override { return 0; }
    Traffic traffic() const noexcept override { return {}; }
};

}  // namespace

std::unique_ptr<Communicator> make_single_communicator() {
    return std::make_unique<SingleCommunicator>();
}

}  // namespace sherd
