#pragma once
/// Loss and perplexity over documents, on any number of ranks.
#include "train/step_feed.hpp"

#include "sherd/comm/communicator.hpp"
#include "sherd/model/decoder.hpp"

namespace sherd {

struct EvaluationResult {
    double loss = 0;        ///< mean over targets; NaN without targets
    double perplexity = 0;  ///< exp(loss), infinity beyond double
    std::int64_t targets = 0;
};

/// Collective. The first `documents` documents of the group (0: all), in file order. `sum`: one double in device memory, overwritten.
EvaluationResult evaluate(Decoder& decoder, Backend& backend, Stream& compute, Stream& communication, BatchBuffers& buffers,
                          Communicator& communicator, const TokenGroup& group, const std::vector<RankBudget>& budgets,
                          std::int64_t documents, double* sum);

}  // namespace sherd
