#include "backend/cuda/cuda_backend.hpp"
#include "comm/movement_kind.hpp"
#include "comm/nccl/check.hpp"
#include "comm/nccl/exchange.hpp"
#include "comm/nccl/handle.hpp"
#include "comm/nccl/progress.hpp"
#include "comm/traffic_counters.hpp"

#include "sherd/comm/nccl.hpp"
#include "sherd/runtime/log.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace sherd {

namespace {

using namespace detail;

std::string version_text(int code) {
    return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

ncclUniqueId agree_on_id(Communicator& host) {
    ncclUniqueId id{};
    std::string bytes;
    collectively(host, [&] {
        if (host.rank() != 0) return;
        SHERD_NCCL(ncclGetUniqueId(&id));
        bytes.assign(id.internal, sizeof id.internal);
    });
    bytes = broadcast(host, bytes);
    std::memcpy(id.internal, bytes.data(), sizeof id.internal);
    return id;
}

class NcclCommunicator final : public Communicator, private cuda::WaitWatcher {
  public:
    NcclCommunicator(std::unique_ptr<Communicator> host, cuda::CudaBackend& backend, const std::vector<int>& nodes,
                     const NcclOptions& options, std::shared_ptr<TrafficCounters> counters, std::shared_ptr<NcclFamily> family,
                     std::shared_ptr<NcclStaging> staging)
        : host_(std::move(host)),
          backend_(backend),
          nodes_(nodes),
          options_(options),
          counters_(std::move(counters)),
          family_(std::move(family)),
          staging_(std::move(staging)),
          exchange_(backend, *staging_, host_->rank(), host_->size()) {
        backend_.use();
        const ncclUniqueId id = agree_on_id(*host_);
        collectively(*host_, [&] { nccl_ = std::make_unique<NcclHandle>(id, rank(), size(), options_.limits.timeout_s, family_); });
        start_together();
        backend_.watchers().add(*this);
    }
    ~NcclCommunicator() override { backend_.watchers().remove(*this); }

    int rank() const noexcept override { return host_->rank(); }
    int size() const noexcept override { return host_->size(); }
    std::vector<std::string> exchange(std::string_view mine) override { return host_->exchange(mine); }
    std::uint64_t staging_bytes() const noexcept override { return 0; }
    std::uint64_t device_staging_bytes() const noexcept override { return staging_->bytes(); }
    Traffic traffic() const noexcept override { return counters_->read(); }

    std::unique_ptr<Communicator> split(int color) override {
        std::vector<int> nodes;
        const auto colors = exchange(std::to_string(color));
        for (std::size_t r = 0; r < colors.size(); ++r)
            if (std::stoi(colors[r]) == color) nodes.push_back(nodes_[r]);
        return std::make_unique<NcclCommunicator>(host_->split(color), backend_, nodes, options_, counters_, family_, staging_);
    }

    void redistribute(Stream& stream, const Redistribution& m, CollectiveTag tag) override {
        backend_.use();
        const auto [all, between] = sent_bytes(m, rank(), nodes_);
        counters_->add(tag.phase, all, between);
        auto& cuda_stream = static_cast<cuda::CudaStream&>(stream);
        cuda_stream.enqueues(name_of(tag.phase).data());
        progress_.before(cuda_stream.get(), tag);
        if (size() == 1)
            exchange_.copy(*nccl_, cuda_stream, m, text_of(tag));  // a sum of one is a copy
        else
            enqueue(cuda_stream, m, tag);
        progress_.after(cuda_stream.get());
    }

  private:
    /// NCCL tells a rank only about itself: where one cannot start, the others would wait for it until the deadline. So each looks for a
    /// while, and all tell one another.
    void start_together() {
        constexpr double longest_look = 0.25;
        for (double look = 0.005;; look = std::min(2 * look, longest_look)) {
            bool begun = false;
            collectively(*host_, [&] { begun = nccl_->start(look); });
            if (!any_of_ranks(*host_, !begun)) return;
        }
    }

    void enqueue(cuda::CudaStream& stream, const Redistribution& m, CollectiveTag tag) {
        const auto me = static_cast<std::size_t>(rank());
        const ncclDataType_t type = nccl_type(m.dtype);
        const auto count = [](Interval i) { return static_cast<std::size_t>(i.size()); };
        const ncclComm_t nccl = nccl_->get();
        const MovementKind kind = classify(m);
        switch (kind) {
            case MovementKind::all_gather:
                SHERD_NCCL(ncclAllGather(m.from, m.to, count(m.sources[me]), type, nccl, stream.get()));
                break;
            case MovementKind::broadcasts:
                broadcasts(stream, m);
                break;
            case MovementKind::messages:
                exchange_.copy(*nccl_, stream, m, text_of(tag));
                break;
            case MovementKind::all_reduce:
                SHERD_NCCL(ncclAllReduce(m.from, m.to, count(m.sources[me]), ncclFloat32, ncclSum, nccl, stream.get()));
                break;
            case MovementKind::reduce_scatter:
                SHERD_NCCL(ncclReduceScatter(m.from, m.to, count(m.owners[me]), ncclFloat32, ncclSum, nccl, stream.get()));
                break;
            case MovementKind::reduces:
                reduces(stream, m);
                break;
            case MovementKind::exchange:
                exchange_.sum(*nccl_, stream, m, text_of(tag));
                break;
        }
        nccl_->settle(text_of(tag));
    }

    void broadcasts(cuda::CudaStream& stream, const Redistribution& m) {
        const auto element = static_cast<std::int64_t>(size_of(m.dtype));
        NcclGroup group;
        for (int root = 0; root < size(); ++root) {
            const Interval part = m.sources[static_cast<std::size_t>(root)];
            if (part.empty()) continue;
            auto* to = static_cast<char*>(m.to) + part.begin * element;  // everyone's interval begins at 0
            SHERD_NCCL(ncclBroadcast(root == rank() ? m.from : to, to, static_cast<std::size_t>(part.size()), nccl_type(m.dtype), root,
                                     nccl_->get(), stream.get()));
        }
        group.end();
    }

    void reduces(cuda::CudaStream& stream, const Redistribution& m) {
        NcclGroup group;
        for (int root = 0; root < size(); ++root) {
            const Interval part = m.owners[static_cast<std::size_t>(root)];
            if (part.empty()) continue;
            const float* from = static_cast<const float*>(m.from) + part.begin;
            SHERD_NCCL(
                ncclReduce(from, m.to, static_cast<std::size_t>(part.size()), ncclFloat32, ncclSum, root, nccl_->get(), stream.get()));
        }
        group.end();
    }

    /// While the host waits for a stream: failures of NCCL's own threads, and collectives that do not end.
    void check() override {
        if (nccl_->aborted()) return;
        const auto running = progress_.oldest();
        nccl_->check(running ? text_of(running->tag) : "a collective");
        if (!running) return;
        if (running->seconds > options_.limits.hang_report_s && !std::exchange(reported_, true))
            log::warning_of_any_rank(
                fmt::format("NCCL: {} among {} ranks has run for {:.0f} s on rank {} (host {}); another rank is late or gone",
                            text_of(running->tag), size(), running->seconds, process_rank(), host_name()));
        if (running->seconds < options_.limits.hang_report_s) reported_ = false;
        if (running->seconds > options_.limits.timeout_s) {
            nccl_->abort_and_throw(fmt::format(
                "NCCL: {} among {} ranks has run for {:.0f} s on rank {} (host {}) and is not done: another rank is late or gone; "
                "communication.timeout_s waits longer",
                text_of(running->tag), size(), running->seconds, process_rank(), host_name()));
        }
    }
    void abandon() noexcept override { nccl_->abort("a stream was left by an error"); }

    std::unique_ptr<Communicator> host_;
    cuda::CudaBackend& backend_;
    std::vector<int> nodes_;
    NcclOptions options_;
    std::shared_ptr<TrafficCounters> counters_;
    std::shared_ptr<NcclFamily> family_;
    std::shared_ptr<NcclStaging> staging_;
    NcclExchange exchange_;
    NcclProgress progress_;
    std::unique_ptr<NcclHandle> nccl_;
    bool reported_ = false;
};

/// Ranks with different versions connect, or seem to, and then fail or hang anywhere.
void compare_versions(Communicator& host, int version) {
    const auto versions = host.exchange(std::to_string(version));
    for (std::size_t r = 1; r < versions.size(); ++r)
        if (versions[r] != versions[0])
            throw AgreedError(ExitCode::environment,
                              fmt::format("rank 0 has NCCL {} and rank {} has NCCL {}; all ranks must load the same (LD_LIBRARY_PATH)",
                                          version_text(std::stoi(versions[0])), r, version_text(std::stoi(versions[r]))));
    if (version / 10000 != NCCL_MAJOR || version < NCCL_VERSION_CODE)
        throw AgreedError(ExitCode::environment,
                          fmt::format("the NCCL that is loaded is {}, and this binary was compiled with {}; load that one or a later {}.x",
                                      version_text(version), version_text(NCCL_VERSION_CODE), NCCL_MAJOR));
}

/// Puts the deck's variables into the environment, and what sherd wants where nobody said else. Returns what was set, for the log.
std::string set_variables(const NcclOptions& options) {
    std::string set;
    for (const auto& [name, value] : options.variables) {
        ::setenv(name.c_str(), value.c_str(), 1);
        set += fmt::format("{}{}={}", set.empty() ? "; from the deck: " : ", ", name, value);
    }
    if (const char* blocking = std::getenv("NCCL_COMM_BLOCKING"); blocking != nullptr && std::string_view(blocking) != "0")
        throw UsageError(
            "NCCL_COMM_BLOCKING={} would let NCCL wait without end for ranks that are gone; remove it from the environment and "
            "from [nccl]",
            blocking);
    ::setenv("NCCL_COMM_BLOCKING", "0", 1);  // before what NCCL's own files may say
    // sums taken by the switch differ from one call to the next (github.com/NVIDIA/nccl/issues/1497)
    if (std::getenv("NCCL_NVLS_ENABLE") == nullptr) {
        ::setenv("NCCL_NVLS_ENABLE", "0", 1);
        set += "; NCCL_NVLS_ENABLE=0, so that sums repeat";
    }
    return set;
}

}  // namespace

std::string nccl_build() {
    return version_text(NCCL_VERSION_CODE);
}
bool built_with_nccl() noexcept {
    return true;
}

std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator> host, Backend& backend, const std::vector<int>& nodes,
                                                     const NcclOptions& options) {
    std::string set;
    collectively(*host, [&] { set = set_variables(options); });
    int version = 0;
    collectively(*host, [&] { SHERD_NCCL(ncclGetVersion(&version)); });
    compare_versions(*host, version);
    log::line(fmt::format("NCCL {}{}", version_text(version), set));
    auto& device = dynamic_cast<cuda::CudaBackend&>(backend);
    return std::make_unique<NcclCommunicator>(std::move(host), device, nodes, options, std::make_shared<TrafficCounters>(),
                                              std::make_shared<NcclFamily>(), std::make_shared<NcclStaging>(device));
}

}  // namespace sherd
