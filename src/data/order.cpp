#include "sherd/data/order.hpp"

#include "sherd/runtime/error.hpp"

#include <algorithm>
#include <cmath>

namespace sherd {

namespace {
// splitmix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014): the increment and the finalizer of its
// reference implementation. The order of a run depends on these constants: they never change.
constexpr std::uint64_t golden_gamma = 0x9E3779B97F4A7C15u;
constexpr std::uint64_t mix(std::uint64_t z) noexcept {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/// A step of more documents than this is a mistake in the deck: a plan of it would not fit in memory.
constexpr std::int64_t most_step_documents = std::int64_t{1} << 26;

void check_size(const StepSize& size) {
    if (size.sequences < 1 && size.tokens < 1)
        throw UsageError("a step has neither sequences nor tokens (batch.sequences {}, batch.tokens {}): one of them must be at least 1",
                         size.sequences, size.tokens);
    if (size.sequences > most_step_documents)
        throw UsageError("batch.sequences is {}: expected at most {}", size.sequences, most_step_documents);
}
}  // namespace

Permutation::Permutation(std::int64_t n, std::uint64_t seed, std::int64_t epoch) : n_(static_cast<std::uint64_t>(n)), half_bits_(1) {
    if (n < 1) throw UsageError("cannot permute {} documents: expected at least 1", n);
    while (half_bits_ < 31 && (std::uint64_t{1} << (2 * half_bits_)) < n_) ++half_bits_;
    if (n_ > std::uint64_t{1} << 62) throw UsageError("cannot permute {} documents: expected at most 2^62", n);
    // two rounds of mixing, so that (seed, epoch) and (seed + 1, epoch - 1) have nothing in common
    const std::uint64_t key = mix(mix(seed + golden_gamma) + static_cast<std::uint64_t>(epoch));
    for (std::uint64_t round = 0; round < 6; ++round) keys_[round] = mix(key + (round + 1) * golden_gamma);
}

std::int64_t Permutation::operator()(std::int64_t i) const noexcept {
    const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
    auto value = static_cast<std::uint64_t>(i);
    do {  // cycle walking: the network permutes [0, 4^half_bits); values past n are sent on until one lies within
        std::uint64_t left = value >> half_bits_, right = value & mask;
        for (const std::uint64_t key : keys_) {
            const std::uint64_t next = left ^ (mix(right ^ key) & mask);
            left = right;
            right = next;
        }
        value = (left << half_bits_) | right;
    } while (value >= n_);
    return static_cast<std::int64_t>(value);
}

DocumentOrder::DocumentOrder(std::int64_t documents, std::uint64_t seed, bool shuffle)
    : documents_(documents), seed_(seed), shuffle_(shuffle) {
    if (documents < 1) throw UsageError("there are {} documents to train on: expected at least 1", documents);
}

std::int64_t DocumentOrder::at(std::int64_t position) const {
    if (position < 0) throw UsageError("position {} in the training order: expected at least 0", position);
    const std::int64_t epoch = position / documents_, index = position % documents_;
    if (!shuffle_) return index;
    for (const auto& [known, permutation] : epochs_)
        if (known == epoch) return permutation(index);
    if (epochs_.size() == 2) epochs_.erase(epochs_.begin());
    epochs_.emplace_back(epoch, Permutation(documents_, seed_, epoch));
    return epochs_.back().second(index);
}

std::vector<std::int64_t> step_documents(const DocumentOrder& order, std::int64_t position, const StepSize& size,
                                         const std::function<std::int64_t(std::int64_t)>& length) {
    check_size(size);
    std::vector<std::int64_t> documents;
    if (size.sequences > 0) {
        documents.reserve(static_cast<std::size_t>(size.sequences));
        for (std::int64_t i = 0; i < size.sequences; ++i) documents.push_back(order.at(position + i));
        return documents;
    }
    for (std::int64_t sum = 0;;) {
        const std::int64_t document = order.at(position + static_cast<std::int64_t>(documents.size()));
        const std::int64_t tokens = length(document);
        if (!documents.empty() && tokens > size.tokens - sum) return documents;
        if (static_cast<std::int64_t>(documents.size()) == most_step_documents)
            throw UsageError("batch.tokens = {} takes more than {} documents a step", size.tokens, most_step_documents);
        documents.push_back(document);
        sum += tokens;
    }
}

std::int64_t steps_in(double epochs, const DocumentOrder& order, const StepSize& size,
                      const std::function<std::int64_t(std::int64_t)>& length) {
    check_size(size);
    const double exact = epochs * static_cast<double>(order.documents());
    if (!(epochs > 0) || !(exact < 0x1p52)) throw UsageError("run.epochs is {}: expected a positive number that can be counted", epochs);
    // 1.1 epochs of 10 documents are 11 documents, although 1.1 * 10 is above 11 in binary
    const auto positions = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(exact * (1 - 1e-14))));
    if (size.sequences > 0) return (positions - 1) / size.sequences + 1;
    std::int64_t steps = 1, sum = 0;  // one pass over the positions: the greedy rule of step_documents, without its lists
    for (std::int64_t p = 0, first = 0; p < positions; ++p) {
        const std::int64_t tokens = length(order.at(p));
        if (p > first && tokens > size.tokens - sum) {
            ++steps;
            first = p;
            sum = 0;
        }
        sum += tokens;
    }
    return steps;
}

}  // namespace sherd
