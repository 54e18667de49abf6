#pragma once
/// Which documents an optimizer step trains on: a function of (seed, step) only, never of ranks or micro-batches.
#include <cstdint>
#include <functional>
#include <vector>

namespace sherd {

/// A permutation of [0, n) in O(1) memory: a Feistel network over the next power of four with cycle walking
/// (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002), keyed by (seed, epoch). The round function is splitmix64's
/// finalizer; its constants are part of the format of a checkpoint, which stores a position only: they never change. Throws UsageError for
/// n < 1.
class Permutation {
  public:
    Permutation(std::int64_t n, std::uint64_t seed, std::int64_t epoch);
    std::int64_t operator()(std::int64_t i) const noexcept;

  private:
    std::uint64_t n_, keys_[6];
    int half_bits_;
};

/// Documents in training order: position p is document p % n of epoch p / n, permuted within each epoch or in file order. One thread.
class DocumentOrder {
  public:
    /// Throws UsageError for n < 1.
    DocumentOrder(std::int64_t documents, std::uint64_t seed, bool shuffle);
    std::int64_t documents() const noexcept { return documents_; }
    std::int64_t at(std::int64_t position) const;

  private:
    std::int64_t documents_;
    std::uint64_t seed_;
    bool shuffle_;
    mutable std::vector<std::pair<std::int64_t, Permutation>> epochs_;  ///< the two used last
};

/// How many documents a step takes: a fixed number, or while the sum of their tokens stays within a limit (at least one).
struct StepSize {
    std::int64_t sequences = 0;  ///< used where > 0
    std::int64_t tokens = 0;
};

/// Documents of the step that starts at `position`, as document indices in training order. The next step starts at position + size().
/// `length` gives the tokens of a document. Throws UsageError where `size` says nothing or too much.
std::vector<std::int64_t> step_documents(const DocumentOrder& order, std::int64_t position, const StepSize& size,
                                         const std::function<std::int64_t(std::int64_t)>& length);

/// Number of steps in `epochs` epochs, rounded up. Time: constant for sequences, one call of `length` per document and epoch for tokens.
/// Throws UsageError unless epochs > 0.
std::int64_t steps_in(double epochs, const DocumentOrder& order, const StepSize& size,
                      const std::function<std::int64_t(std::int64_t)>& length);

}  // namespace sherd
