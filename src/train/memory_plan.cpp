#include "train/memory_plan.hpp"

#include "backend/memory_account.hpp"

#include <algorithm>

namespace sherd {

std::vector<StateClass> planned_memory(const MemoryQuestion& q) {
    const ModelConfig& config = q.inputs->config;
    const bool training = q.purpose == TrainingState::Purpose::training;
    auto classes = TrainingState::classes(*q.inputs->layout, q.compute, q.purpose, q.plan, q.groups, q.options, q.rank);
    const DecoderMemory decoder =
        Decoder::memory(config, *q.backend, q.compute, {bucket_rows(q.micro_tokens), q.inputs->longest(), training});
    classes.push_back({"activations", q.compute, decoder.activations});
    classes.push_back({"workspace", q.compute, decoder.workspace});
    classes.push_back({"micro-batch", DType::i32, BatchBuffers::bytes(q.micro_tokens)});
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
    changed.micro_tokens = std::max(q.micro_tokens / 2, q.inputs->longest());
    if (changed.micro_tokens < q.micro_tokens) savings.consider(fmt::format("batch.micro_tokens = {}", changed.micro_tokens), changed);
}

/// Of all strategies the one that takes least.
void consider_strategies(Savings& savings, const MemoryQuestion& q) {
    if (q.groups.size() == 1) return;
    MemoryQuestion best = q;
    std::string_view name;
    std::uint64_t least = total_bytes(planned_memory(q));
    for (const NamedStrategy& strategy : named_strategies()) {
        MemoryQuestion changed = q;
        changed.plan = strategy.plan;
        const std::uint64_t total = total_bytes(planned_memory(changed));
        if (total >= least) continue;
        least = total;
        best = changed;
        name = strategy.name;
    }
    if (!name.empty()) savings.consider(fmt::format("sharding.strategy = {}", name), best);
}

}  // namespace

std::vector<Saving> possible_savings(const MemoryQuestion& q) {
    Savings savings(q);
    consider_micro_tokens(savings, q);
    consider_strategies(savings, q);
    MemoryQuestion changed = q;
    changed.options.keep_gathered = false;
    savings.consider("sharding.keep_gathered = false", changed);
    changed = q;
    changed.options.gradients = DType::bf16;
    savings.consider("precision.gradients = bf16", changed);
    if (q.backend->has_native(DType::bf16)) {
        changed = q;
        changed.compute = DType::bf16;
        savings.consider("precision.compute = bf16", changed);
    }
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
