#include "sherd/comm/communicator.hpp"

#include "sherd/backend/backend.hpp"

#include <cstring>

namespace sherd {

std::string_view name_of(CommunicationPhase phase) noexcept {
    constexpr std::array<std::string_view, communication_phases> names{"gather weights", "reduce gradients", "finish gradients",
                                                                       "refresh weights", "other"};
    return names[static_cast<std::size_t>(phase)];
}

std::string text_of(CollectiveTag tag) {
    return tag.unit < 0 ? fmt::format("'{}'", name_of(tag.phase)) : fmt::format("'{}' of unit {}", name_of(tag.phase), tag.unit);
}

namespace {
IntervalTable everything(const IntervalTable& owners) {
    std::int64_t n = 0;
    for (const Interval& i : owners) n = std::max(n, i.end);
    return IntervalTable(owners.size(), Interval{0, n});
}
}  // namespace

void reduce_scatter(Communicator& communicator, Stream& stream, float* data, const IntervalTable& owners, CollectiveTag tag) {
    float* mine = data + owners[static_cast<std::size_t>(communicator.rank())].begin;
    communicator.redistribute(stream, {Redistribution::Mode::sum, DType::f32, DType::f32, data, mine, everything(owners), owners}, tag);
}

void all_gather(Communicator& communicator, Stream& stream, void* data, DType dtype, const IntervalTable& owners, CollectiveTag tag) {
    const auto* mine = static_cast<const char*>(data) +
                       owners[static_cast<std::size_t>(communicator.rank())].begin * static_cast<std::int64_t>(size_of(dtype));
    communicator.redistribute(stream, {Redistribution::Mode::copy, dtype, dtype, mine, data, owners, everything(owners)}, tag);
}

std::pair<std::uint64_t, std::uint64_t> sent_bytes(const Redistribution& movement, int rank, const std::vector<int>& nodes) {
    std::uint64_t all = 0, between = 0;
    const auto me = static_cast<std::size_t>(rank);
    for (std::size_t peer = 0; peer < movement.owners.size(); ++peer) {
        if (peer == me) continue;
        const auto bytes =
            static_cast<std::uint64_t>(intersect(movement.sources[me], movement.owners[peer]).size()) * size_of(movement.wire);
        all += bytes;
        if (nodes[peer] != nodes[me]) between += bytes;
    }
    return {all, between};
}

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
    if (mine != nullptr)
        report = std::string{static_cast<char>(mine->exit_code()), static_cast<char>(mine->cause())} + host_name() + '\0' + mine->what();
    const auto reports = communicator.exchange(report);
    for (std::size_t rank = 0; rank < reports.size(); ++rank) {
        if (reports[rank].empty()) continue;
        const auto code = static_cast<ExitCode>(reports[rank][0]);
        const auto cause = static_cast<Cause>(reports[rank][1]);
        const auto end_of_host = reports[rank].find('\0', 2);
        const std::string host = reports[rank].substr(2, end_of_host - 2), what = reports[rank].substr(end_of_host + 1);
        throw AgreedError(code, communicator.size() == 1 ? what : fmt::format("{} (rank {}, host {})", what, rank, host), cause);
    }
}

namespace {

class SingleCommunicator final : public Communicator {
  public:
    explicit SingleCommunicator(Backend* backend) : backend_(backend) {}
    int rank() const noexcept override { return 0; }
    int size() const noexcept override { return 1; }
    void redistribute(Stream& stream, const Redistribution& m, CollectiveTag) override {
        const Interval both = intersect(m.sources[0], m.owners[0]);
        const auto element = static_cast<std::int64_t>(size_of(m.dtype));
        const auto* from = static_cast<const char*>(m.from) + (both.begin - m.sources[0].begin) * element;
        auto* to = static_cast<char*>(m.to) + (both.begin - m.owners[0].begin) * element;
        if (from != to && !both.empty()) backend_->copy(stream, to, from, static_cast<std::size_t>(both.size() * element));
    }
    std::vector<std::string> exchange(std::string_view mine) override { return {std::string(mine)}; }
    std::unique_ptr<Communicator> split(int) override { return std::make_unique<SingleCommunicator>(backend_); }
    std::uint64_t staging_bytes() const noexcept override { return 0; }
    Traffic traffic() const noexcept override { return {}; }

  private:
    Backend* backend_;
};

}  // namespace

std::unique_ptr<Communicator> make_single_communicator(Backend* backend) {
    return std::make_unique<SingleCommunicator>(backend);
}

}  // namespace sherd
