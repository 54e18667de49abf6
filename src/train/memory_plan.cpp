#include "train/memory_plan.hpp"

#include "backend/memory_account.hpp"

#include <algorithm>

namespace sherd {

std::vector<StateClass> planned_memory(const MemoryQuestion& q) {
    const ModelConfig& config = q.inputs->config;
    const bool training = q.purpose == TrainingState::Purpose::training;
    auto classes = TrainingState::classes(*q.inputs->layout, q.compute, q.purpose, q.plan, q.groups, q.options, q.rank);
    const DecoderMemory decoder =
        Decoder::memory(config, *q.backend, q.compute, {bucket_rows(q.micro_tokens), q.longest, training, q.own_attention});
    classes.push_back({"activations", q.compute, decoder.activations});
    classes.push_back({"workspace", q.compute, decoder.workspace});
    classes.push_back({"micro-batch", DType::i32, BatchBuffers::bytes(q.micro_tokens)});
    if (q.device_staging > 0) classes.push_back({"communication staging", DType::f32, q.device_staging});
    return classes;
}

std::uint64_t total_bytes(const std::vector<StateClass>& classes) {
    std::uint64_t total = 0;
    for (const StateClass& c : classes) total += c.bytes;
    return total;
}

namespace {

/// Collects what changed questions would free.
class Savings {
  public:
    explicit Savings(const MemoryQuestion& question) : before_(total_bytes(planned_memory(question))) {}
    void consider(std::string change, const MemoryQuestion& changed) {
        const std::uint64_t after = total_bytes(planned_memory(changed));
        if (after < before_) found_.push_back({std::move(change), before_ - after});
    }
    std::vector<Saving> take() {
        std::stable_sort(found_.begin(), found_.end(), [](const Saving& a, const Saving& b) { return a.bytes > b.bytes; });
        return std::move(found_);
    }

  private:
    std::uint64_t before_;
    std::vector<Saving> found_;
};

/// Half of the capacity, or what the longest document needs.
void consider_micro_tokens(Savings& savings, const MemoryQuestion& q) {
    MemoryQuestion changed = q;
    changed.micro_tokens = std::max(q.micro_tokens / 2, q.longest);
    if (changed.micro_tokens < q.micro_tokens) savings.consider(fmt::format("batch.micro_tokens = {}", changed.micro_tokens), changed);
}

/// Half of the longest document, where micro-batches cannot become much smaller while it is whole.
void consider_max_sequence(Savings& savings, const MemoryQuestion& q) {
    constexpr std::int64_t step = 64;
    MemoryQuestion changed = q;
    changed.longest = q.longest / 2 / step * step;
    if (changed.longest == 0 || q.longest <= q.micro_tokens / 2) return;
    std::string change = fmt::format("data.max_sequence = {}", changed.longest);
    if (q.micro_tokens_auto) changed.micro_tokens = automatic_micro_tokens(changed.longest);
    if (changed.micro_tokens >= q.micro_tokens) {
        changed.micro_tokens = std::max(q.micro_tokens / 2, changed.longest);
        if (changed.micro_tokens < q.micro_tokens) change += fmt::format(" and batch.micro_tokens = {}", changed.micro_tokens);
    }
    savings.consider(change + " (cuts documents)", changed);
}

/// What a deck says for another plan.
std::string keys_for(const NamedStrategy& strategy, const MemoryQuestion& q) {
    if (!q.plan_by_keys) return fmt::format("sharding.strategy = {}", strategy.name);
    std::string text;
    const auto add = [&text](const char* key, Placement before, Placement after) {
        if (after != before) text += fmt::format("{}sharding.{} = {}", text.empty() ? "" : " and ", key, name_of(after));
    };
    add("parameters", q.plan.parameters, strategy.plan.parameters);
    add("gradients", q.plan.gradients, strategy.plan.gradients);
    add("optimizer", q.plan.optimizer, strategy.plan.optimizer);
    return text;
}

/// Of all strategies the one that takes least.
void consider_strategies(Savings& savings, const MemoryQuestion& q) {
    if (q.groups.size() == 1) return;
    const NamedStrategy* best = nullptr;
    MemoryQuestion changed = q;
    std::uint64_t least = total_bytes(planned_memory(q));
    for (const NamedStrategy& strategy : named_strategies()) {
        changed.plan = strategy.plan;
        const std::uint64_t total = total_bytes(planned_memory(changed));
        if (total >= least) continue;
        least = total;
        best = &strategy;
    }
    if (best == nullptr) return;
    changed.plan = best->plan;
    savings.consider(keys_for(*best, q), changed);
}

void consider_precisions(Savings& savings, const MemoryQuestion& q) {
    MemoryQuestion changed = q;
    changed.options.gradients = DType::bf16;
    savings.consider("precision.gradients = bf16", changed);
    if (!q.bf16_everywhere) return;
    changed = q;
    changed.compute = DType::bf16;
    savings.consider("precision.compute = bf16", changed);
}

}  // namespace

std::vector<Saving> possible_savings(const MemoryQuestion& q) {
    Savings savings(q);
    consider_micro_tokens(savings, q);
    if (!q.resumes) consider_max_sequence(savings, q);
    consider_strategies(savings, q);
    MemoryQuestion changed = q;
    changed.options.keep_gathered = false;
    savings.consider("sharding.keep_gathered = false", changed);
    if (!q.resumes) consider_precisions(savings, q);
    changed = q;
    changed.own_attention = true;
    savings.consider("device.attention = own", changed);
    changed = q;
    changed.device_staging = 0;
    savings.consider("communication.backend = mpi", changed);
    return savings.take();
}

std::string savings_text(const MemoryQuestion& question) {
    const auto savings = possible_savings(question);
    std::string text;
    for (const Saving& s : savings)
        text += fmt::format("{}{} {}{}", text.empty() ? "" : ", ", s.change, text.empty() ? "would free " : "", readable_bytes(s.bytes));
    return text.empty() ? "no key of the deck frees any of it: use more ranks, or devices with more memory" : text;
}

std::string largest_first(std::vector<StateClass> classes) {
    std::stable_sort(classes.begin(), classes.end(), [](const StateClass& a, const StateClass& b) { return a.bytes > b.bytes; });
    std::string text;
    for (const StateClass& c : classes) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", c.name, readable_bytes(c.bytes));
    return text;
}

}  // namespace sherd
