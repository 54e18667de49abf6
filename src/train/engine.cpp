#include "train/engine.hpp"

#include "backend/memory_account.hpp"
#include "train/device.hpp"
#include "train/memory_plan.hpp"

#include "sherd/runtime/error.hpp"
#include "sherd/runtime/log.hpp"

#include <algorithm>
#include <map>

namespace sherd {

namespace {

constexpr const char *compute_name = "compute", *communication_name = "communication", *copy_name = "copy";

/// Parts of the arena begin at multiples of 256 bytes, and the least ones are not listed.
constexpr std::uint64_t small_parts_bytes = 64 << 10;

/// Of a GPU's memory that no plan may take: code that CUDA loads when a kernel is first used, and what NCCL allocates when ranks first
/// talk.
constexpr std::uint64_t parts_left_free = 128;

std::string mebibytes(std::uint64_t bytes) {
    return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

/// "4 x cpu: ..." for each kind of device, in order of rank.
std::string device_lines(const std::vector<std::string>& devices, const std::vector<std::string>& hosts) {
    std::string text;
    for (std::size_t first = 0; first < devices.size();) {
        std::size_t last = first + 1;
        while (last < devices.size() && devices[last] == devices[first] && hosts[last] == hosts[first]) ++last;
        const std::string ranks = last - first == 1 ? fmt::format("rank {}", first) : fmt::format("ranks {}-{}", first, last - 1);
        text += fmt::format("  {:<14} {}: {}\n", ranks, hosts[first], devices[first]);
        first = last;
    }
    return text;
}

}  // namespace

/// What this rank sends in an optimizer step, by phase.
std::string Engine::traffic_lines() const {
    std::string text;
    const Traffic one = state->planned_traffic(1), two = state->planned_traffic(2);
    text += fmt::format("sent a step      {} with one micro-step, {} more for each further one; between nodes {} and {}\n",
                        mebibytes(one.total()), mebibytes(two.total() - one.total()), mebibytes(one.total_between_nodes()),
                        mebibytes(two.total_between_nodes() - one.total_between_nodes()));
    for (std::size_t phase = 0; phase < communication_phases; ++phase)
        if (one.bytes[phase] > 0)
            text += fmt::format("  {:<31} {:>21} {:>12}\n", name_of(static_cast<CommunicationPhase>(phase)), one.bytes[phase],
                                mebibytes(one.bytes[phase]));
    return text;
}

std::int64_t automatic_micro_tokens(std::int64_t longest) noexcept {
    return std::max<std::int64_t>(4096, longest);
}

std::vector<RankBudget> make_budgets(const Settings& settings, const Inputs& inputs, int ranks) {
    const auto& given = settings.batch.micro_tokens;
    if (given.size() > 1 && given.size() != static_cast<std::size_t>(ranks))
        throw UsageError("batch.micro_tokens lists {} values for {} ranks; give one, or one per rank", given.size(), ranks);
    std::vector<RankBudget> budgets;
    for (std::size_t r = 0; r < static_cast<std::size_t>(ranks); ++r)
        budgets.push_back({given.empty() ? automatic_micro_tokens(inputs.longest()) : given.size() == 1 ? given[0] : given[r], 1.0});
    const auto largest =
        std::max_element(budgets.begin(), budgets.end(), [](auto& a, auto& b) { return a.micro_tokens < b.micro_tokens; })->micro_tokens;
    const auto check = [&](const GroupFacts& facts, const char* group) {
        if (facts.longest > largest)
            throw UsageError(
                "{}: document {} of group '{}' has {} tokens, more than batch.micro_tokens = {} holds; set batch.micro_tokens to at "
                "least {} or cut documents with data.max_sequence",
                settings.data.tokens, facts.longest_index, group, facts.longest, largest, facts.longest);
    };
    check(inputs.train, "train");
    if (inputs.validation) check(*inputs.validation, "validation");
    return budgets;
}

void Engine::choose_type(const Settings& settings, Communicator& host) {
    if (settings.precision.compute)
        collectively(host, [&] {
            const DType wanted = *settings.precision.compute;
            if (!device.backend->can_compute(wanted))
                throw UsageError("precision.compute = {}: {} cannot compute in it; use auto or fp32", name_of(wanted),
                                 device.backend->description());
        });
    const bool native = bf16_everywhere_ = !any_of_ranks(host, !device.backend->has_native(DType::bf16));
    if (settings.precision.compute) {
        type = *settings.precision.compute;
        type_reason = "as the deck says";
        if (type == DType::bf16 && !native) type_reason += "; emulated, some rank's device has no bf16";
        return;
    }
    type = native ? DType::bf16 : DType::f32;
    type_reason = native ? "every rank's device has it in hardware" : "not every rank's device has bf16 in hardware";
}

/// On one node weights are split over all ranks; on several they are split within nodes, so that gathering them crosses none.
void Engine::choose_plan(const Settings& settings, const Session& session) {
    const Settings::Sharding& sharding = settings.sharding;
    groups = make_groups(session.topology().nodes_by_rank, sharding.node_size, {}, {});
    plan = plan_named(sharding.strategy != "auto" ? sharding.strategy : groups.node_count() > 1 ? "hierarchical_shard" : "full_shard");
    plan = {sharding.parameters.value_or(plan.parameters), sharding.gradients.value_or(plan.gradients),
            sharding.optimizer.value_or(plan.optimizer)};
    check_plan(plan);
    groups = make_groups(session.topology().nodes_by_rank, sharding.node_size, sharding.shares, plan);
}

ShardOptions Engine::options_of(const Settings& settings) const {
    return {settings.sharding.keep_gathered, settings.sharding.prefetch, settings.precision.reduce, settings.precision.gradients};
}

MemoryQuestion Engine::question(const Settings& settings, const Inputs& inputs, int rank) const {
    const Settings::Sharding& sharding = settings.sharding;
    return {.inputs = &inputs,
            .backend = device.backend.get(),
            .purpose = purpose_,
            .compute = type,
            .plan = plan,
            .groups = groups,
            .options = options_of(settings),
            .rank = rank,
            .micro_tokens = budgets[static_cast<std::size_t>(rank)].micro_tokens,
            .longest = inputs.longest(),
            .micro_tokens_auto = settings.batch.micro_tokens.empty(),
            .plan_by_keys = sharding.parameters || sharding.gradients || sharding.optimizer,
            .resumes = resumes_,
            .bf16_everywhere = bf16_everywhere_,
            .own_attention = false,
            .device_staging = world ? world->device_staging_bytes() : 0};
}

/// Everything, before any of it is allocated; with what is in use already. Collective.
void Engine::plan_memory(const Settings& settings, const MemoryQuestion& all, Communicator& host) {
    const bool gpu = device.gpu.has_value();
    collectively(host, [&] { memory = planned_memory(all); });
    for (const char* stream : {compute_name, communication_name, copy_name}) {
        const std::uint64_t bytes = device.backend->stream_bytes(stream);
        if (bytes > 0) memory.push_back({fmt::format("workspace of stream '{}'", stream), DType::u8, bytes});
    }
    if (gpu) memory.push_back({"sums, alignment", DType::u8, small_parts_bytes});
    const auto own = static_cast<double>(total_bytes(memory));
    const std::uint64_t staging = gpu ? 0 : world->staging_bytes();  // beside a GPU it is pinned memory of the host
    const std::uint64_t before = device.backend->peak_memory_bytes();
    if (staging > 0) memory.push_back({"communication staging", DType::f32, staging});
    memory.push_back({gpu ? "in use before: CUDA, libraries" : "program and libraries", DType::u8, before});
    memory_totals.assign(static_cast<std::size_t>(host.size()), 0.0);
    memory_totals[static_cast<std::size_t>(host.rank())] = static_cast<double>(total_bytes(memory));
    all_reduce_sum(host, memory_totals);
    std::vector<double> needed(memory_totals.size(), 0.0);
    needed[static_cast<std::size_t>(host.rank())] = own;
    all_reduce_sum(host, needed);
    double shared = 0;
    for (const int r : device.sharing(host.rank())) shared += needed[static_cast<std::size_t>(r)];
    std::vector<double> plans(needed.size(), 0.0);
    plans[static_cast<std::size_t>(host.rank())] = static_cast<double>(before + staging) + shared;
    all_reduce_sum(host, plans);
    largest_plan = *std::max_element(plans.begin(), plans.end());
    collectively(host, [&] { check_memory(settings, all, static_cast<std::uint64_t>(shared)); });
}

/// needed: by all ranks that share the device.
void Engine::check_memory(const Settings& settings, const MemoryQuestion& all, std::uint64_t needed) const {
    const auto& limits = settings.device.memory_limit;
    const auto rank = static_cast<std::size_t>(world->rank());
    const std::uint64_t limit = limits.empty() ? 0 : limits.size() == 1 ? limits[0] : limits[rank];
    const auto refuse = [&](std::uint64_t wanted, const std::string& there) {
        throw DeviceError("{} of memory are needed on {}, and {}. Planned for this rank, largest first: {}. {}", readable_bytes(wanted),
                          device.backend->description(), there, largest_first(memory), savings_text(all));
    };
    const std::uint64_t mine = total_bytes(memory) - (device.gpu ? memory.back().bytes : 0);  // a limit is for what this rank allocates
    if (limit > 0 && mine > limit) refuse(mine, fmt::format("device.memory_limit is {}", readable_bytes(limit)));
    if (!device.gpu) return;
    const std::uint64_t available = device.backend->available_memory_bytes(), kept = device.gpu->memory_bytes / parts_left_free;
    if (needed + kept > available)
        refuse(needed, fmt::format("{} of {} are free, of which {} stay free for code and for connections of NCCL",
                                   readable_bytes(available), readable_bytes(device.gpu->memory_bytes), readable_bytes(kept)));
}

void Engine::advise(const Settings& settings, const Inputs& inputs, const OutOfMemoryError& error) const {
    const bool lists_holders = dynamic_cast<const CallOutOfMemoryError*>(&error) == nullptr;
    std::string text = error.what();
    try {
        if (!lists_holders) text += ". " + device.backend->memory_report();
        text += ". " + savings_text(question(settings, inputs, world->rank()));
    } catch (const std::exception& other) {
        text += fmt::format(" (more cannot be told: {})", other.what());  // questions to a library may want memory, too
    }
    throw DeviceError("{}", text);
}

Engine::Engine(const Settings& settings, const Session& session, Communicator& host, const Inputs& inputs, TrainingState::Purpose purpose,
               bool resumes)
    : device(choose_device(settings, session, host)), purpose_(purpose), resumes_(resumes) {
    devices = host.exchange(device.backend->description());
    choose_type(settings, host);
    collectively(host, [&] { budgets = make_budgets(settings, inputs, host.size()); });
    collectively(host, [&] { choose_plan(settings, session); });
    MemoryQuestion all = question(settings, inputs, host.rank());
    try {
        world = make_world(settings, session, device, groups.nodes);
    } catch (const AgreedError& error) {
        if (error.cause() == Cause::out_of_memory)
            throw AgreedError(error.exit_code(), fmt::format("{}. {}", error.what(), savings_text(all)));
        throw;
    }
    all = question(settings, inputs, host.rank());  // now with the communicator's part
    plan_memory(settings, all, host);
    const auto allocating = [&](const auto& work) { collectively(host, [&] { with_memory_advice(settings, inputs, work); }); };
    Backend& backend = *device.backend;
    const std::int64_t rows = all.micro_tokens;
    allocating([&] {
        const std::vector<StateClass> own(memory.begin(), memory.end() - 1);  // the last is what was in use before
        backend.reserve(total_bytes(own), fmt::format("all that is planned ({})", largest_first(own)));
        compute = backend.make_stream(compute_name);
        communication = backend.make_stream(communication_name);
        if (device.gpu) copy = backend.make_stream(copy_name);
        if (device.gpu && device.first_of_card(host.rank())) monitor = std::make_unique<GpuMonitor>(device.gpu->bus_id);
    });
    // its first act is a collective of `world`, not of `host`: a failure after that still becomes one of all ranks
    allocating([&] {
        state = std::make_unique<TrainingState>(*inputs.layout, backend, *world, *compute, *communication, type, purpose, plan, groups,
                                                options_of(settings));
    });
    allocating([&] {
        buffers = std::make_unique<BatchBuffers>(backend, *compute, copies(), rows);
        const DecoderLimits limits{rows, inputs.longest(), purpose == TrainingState::Purpose::training};
        decoder = std::make_unique<Decoder>(inputs.config, backend, *compute, *state, type, limits);
        sums = DeviceMemory(backend, sizeof(double) * static_cast<std::size_t>(1 + inputs.layout->unit_count()), "sums");
    });
}

std::string first_line(const Session& session) {
    const Topology& t = session.topology();
    return fmt::format("sherd {} - {} rank(s) on {} node(s), {}", SHERD_VERSION, t.hosts.size(), t.nodes, session.description());
}

std::string Engine::banner(const Settings& settings, const Session& session, const Inputs& inputs) const {
    std::string text = device_lines(devices, session.topology().hosts);
    std::map<std::string_view, int> types;
    for (const DType source : inputs.source_types) ++types[name_of(source)];
    std::string stored;
    for (const auto& [name, count] : types) stored += fmt::format("{}{} {}", stored.empty() ? "" : ", ", count, name);
    text += fmt::format("model            {} with {} parameters from {} (stored: {} tensors)\n", inputs.config.architecture,
                        inputs.layout->parameter_count(), settings.model.weights, stored);
    for (const std::string& assumed : inputs.config.assumed) text += fmt::format("  assumed        {} (absent in config.json)\n", assumed);
    text += fmt::format("compute type     {} ({})\n", name_of(type), type_reason);
    text += fmt::format("sharding         {} over {} rank(s) on {} node(s)\n", describe(plan), groups.size(), groups.node_count());
    if (purpose_ == TrainingState::Purpose::training && groups.size() > 1) text += traffic_lines();
    return text + memory_lines();
}

/// The table of this rank, and where another needs more.
std::string Engine::memory_lines() const {
    std::string text = fmt::format("{:<33} {:>6} {:>14}\n", fmt::format("memory of rank {}", world->rank()), "dtype", "bytes");
    for (const StateClass& c : memory)
        text += fmt::format("  {:<31} {:>6} {:>14} {:>12}\n", c.name, name_of(c.dtype), c.bytes, mebibytes(c.bytes));
    const auto line = [](const std::string& name, double bytes) {
        const auto whole = static_cast<std::uint64_t>(bytes);
        return fmt::format("  {:<31} {:>6} {:>14} {:>12}", name, "", whole, mebibytes(whole));
    };
    text += line("total", memory_totals[static_cast<std::size_t>(world->rank())]);
    const auto largest = std::max_element(memory_totals.begin(), memory_totals.end());
    return text + "\n" + line(fmt::format("largest total, of rank {}", largest - memory_totals.begin()), *largest);
}

}  // namespace sherd
