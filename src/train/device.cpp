#include "train/device.hpp"

#include "sherd/comm/nccl.hpp"
#include "sherd/runtime/error.hpp"
#include "sherd/runtime/log.hpp"

#include <algorithm>
#include <sched.h>
#include <unistd.h>

namespace sherd {

namespace {

/// Cores this process may use, as text that is equal for processes that share them.
std::pair<int, std::string> allowed_cores() {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (::sched_getaffinity(0, sizeof set, &set) != 0) return {static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)), "all"};
    std::string list;
    for (int core = 0; core < CPU_SETSIZE; ++core)
        if (CPU_ISSET(core, &set)) list += fmt::format("{},", core);
    return {CPU_COUNT(&set), list};
}

/// Cores divided by the ranks of this node that share them; collective.
int choose_threads(const Settings& settings, const Session& session, Communicator& host) {
    const auto [cores, list] = allowed_cores();
    const std::string mine = fmt::format("{}:{}", session.topology().node, list);
    const auto all = host.exchange(mine);
    if (settings.device.threads > 0) return static_cast<int>(settings.device.threads);
    return std::max(1, cores / static_cast<int>(std::count(all.begin(), all.end(), mine)));
}

ChosenDevice cpu_device(const Settings& settings, const Session& session, Communicator& host) {
    const int threads = choose_threads(settings, session, host);
    ChosenDevice device;
    device.claims.resize(static_cast<std::size_t>(host.size()));
    collectively(host, [&] { device.backend = make_cpu_backend(threads); });
    return device;
}

std::uint64_t memory_limit(const Settings& settings, int rank) {
    const auto& limits = settings.device.memory_limit;
    return limits.empty() ? 0 : limits.size() == 1 ? limits[0] : limits[static_cast<std::size_t>(rank)];
}

void check_limits(const Settings& settings, Communicator& host) {
    collectively(host, [&] {
        const std::size_t given = settings.device.memory_limit.size();
        if (given > 1 && given != static_cast<std::size_t>(host.size()))
            throw UsageError("device.memory_limit lists {} values for {} ranks; give one, or one per rank", given, host.size());
    });
}

/// Why a rank has no GPU, by rank; an empty text where it has one. Throws AgreedError where only some have one.
std::vector<std::string> reasons_without(const Gpus& gpus, const Settings& settings, const Topology& topology, Communicator& host) {
    auto reasons = host.exchange(gpus.list.empty() ? gpus.why_none : "");
    const auto with = std::find(reasons.begin(), reasons.end(), "");
    const auto without = std::find_if(reasons.begin(), reasons.end(), [](const std::string& r) { return !r.empty(); });
    if (without == reasons.end() || (with == reasons.end() && settings.device.kind == "auto")) return reasons;
    const auto rank = static_cast<std::size_t>(without - reasons.begin());
    if (settings.device.kind == "cuda")
        throw AgreedError(ExitCode::device,
                          fmt::format("device.kind = cuda, and rank {} (host {}) has no GPU: {}", rank, topology.hosts[rank], *without));
    throw AgreedError(
        ExitCode::environment,
        fmt::format("rank {} (host {}) has a GPU and rank {} (host {}) has none: {}; device.kind = cpu computes on CPUs alone",
                    with - reasons.begin(), topology.hosts[static_cast<std::size_t>(with - reasons.begin())], rank, topology.hosts[rank],
                    *without));
}

AttentionBy attention_by(const Settings& settings) {
    if (settings.device.attention == "own") return AttentionBy::own;
    return settings.device.attention == "cudnn" ? AttentionBy::cudnn : AttentionBy::any;
}

/// "machine/bus id" of a claim.
std::string card_of(const std::string& claim) {
    return claim.substr(0, claim.rfind('/'));
}

void refuse_shared_gpus(const ChosenDevice& device, const Settings& settings, const Topology& topology) {
    const auto pair = first_duplicate(device.claims);
    if (!pair || settings.communication.backend == "mpi") return;
    const std::string& host = topology.hosts[static_cast<std::size_t>(pair->first)];
    const std::string& claim = device.claims[static_cast<std::size_t>(pair->first)];
    throw AgreedError(
        ExitCode::environment,
        fmt::format("ranks {} and {} (host {}) would share the GPU at {}; start as many ranks a node as it has GPUs, show each "
                    "rank its own, or say communication.backend = mpi, which lets ranks share one",
                    pair->first, pair->second, host, card_of(claim).substr(claim.find('/') + 1)));
}

}  // namespace

std::vector<int> ChosenDevice::sharing(int rank) const {
    const std::string& mine = claims[static_cast<std::size_t>(rank)];
    std::vector<int> ranks;
    for (int r = 0; r < static_cast<int>(claims.size()); ++r)
        if (r == rank || (!mine.empty() && claims[static_cast<std::size_t>(r)] == mine)) ranks.push_back(r);
    return ranks;
}

bool ChosenDevice::first_of_card(int rank) const {
    const std::string mine = card_of(claims[static_cast<std::size_t>(rank)]);
    return std::none_of(claims.begin(), claims.begin() + rank, [&](const std::string& claim) { return card_of(claim) == mine; });
}

ChosenDevice choose_device(const Settings& settings, const Session& session, Communicator& host) {
    check_limits(settings, host);
    if (settings.device.kind == "cpu" || (settings.device.kind == "auto" && !built_with_cuda())) return cpu_device(settings, session, host);
    const Topology& topology = session.topology();
    Gpus gpus;
    collectively(host, [&] { gpus = find_gpus(); });
    const auto reasons = reasons_without(gpus, settings, topology, host);
    if (!reasons[0].empty()) {
        log::notice(fmt::format("computing on CPUs: {}", reasons[0]));
        return cpu_device(settings, session, host);
    }
    ChosenDevice device;
    device.gpu = gpus.list[static_cast<std::size_t>(choose_gpu(static_cast<int>(gpus.list.size()), topology.local_rank))];
    device.claims = host.exchange(fmt::format("{}/{}/{}", machine_id(), device.gpu->bus_id, device.gpu->uuid));
    refuse_shared_gpus(device, settings, topology);
    collectively(host, [&] {
        device.backend =
            make_cuda_backend({device.gpu->index, memory_limit(settings, host.rank()), settings.precision.tf32, attention_by(settings)});
    });
    return device;
}

std::unique_ptr<Communicator> make_world(const Settings& settings, const Session& session, const ChosenDevice& device,
                                         const std::vector<int>& nodes) {
    const std::string& wanted = settings.communication.backend;
    if (wanted == "nccl" && !device.gpu)
        throw AgreedError(ExitCode::usage, "communication.backend = nccl needs GPUs (device.kind = cuda); CPUs talk by mpi");
    const bool nccl = wanted == "nccl" || (wanted == "auto" && device.gpu && built_with_nccl());
    const WaitLimits limits{settings.communication.hang_report_s, settings.communication.timeout_s};
    if (nccl && nodes.size() > 1)
        return make_nccl_communicator(session.host_world(limits), *device.backend, nodes, {settings.nccl, limits});
    if (!settings.nccl.empty())
        log::notice(fmt::format("the variables of [nccl] are not used: {}", nodes.size() == 1 ? "there is one rank" : "ranks talk by MPI"));
    if (device.gpu && nodes.size() > 1) log::notice("GPUs talk by MPI through host memory");
    return session.world(*device.backend, nodes, limits);
}

}  // namespace sherd
