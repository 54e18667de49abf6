#include "train/evaluator.hpp"

#include <array>
#include <cmath>
#include <numeric>

namespace sherd {

namespace {
constexpr std::int64_t documents_at_once = 256;  // planned together, so that they spread over ranks
}

EvaluationResult evaluate(Decoder& decoder, Backend& backend, Stream& compute, Stream& communication, BatchBuffers& buffers,
                          Communicator& communicator, const TokenGroup& group, const std::vector<RankBudget>& budgets,
                          std::int64_t documents, double* sum) {
    const std::int64_t count = documents > 0 ? std::min(documents, group.documents()) : group.documents();
    StepFeed feed(group, budgets, communicator.rank());
    const auto prepare = [&](std::int64_t first) {
        std::vector<std::int64_t> list(static_cast<std::size_t>(std::min(documents_at_once, count - first)));
        std::iota(list.begin(), list.end(), first);
        feed.prepare(std::move(list));
    };
    backend.zero(compute, sum, sizeof(double));
    std::array<double, 2> totals{};  // loss, targets
    if (count > 0) prepare(0);
    for (std::int64_t first = 0; first < count; first += documents_at_once) {
        StepWork work;
        collectively(communicator, [&] { work = feed.take(); });
        if (first + documents_at_once < count) prepare(first + documents_at_once);
        for (const HostBatch& batch : work.micro_batches) decoder.evaluate(buffers.upload(batch), sum);
        totals[1] += static_cast<double>(work.my_targets);
        backend.synchronize(compute);        // the host batches may go
        backend.synchronize(communication);  // a failed gather must be known before ranks meet again
    }
    backend.copy_to_host(compute, &totals[0], sum, sizeof(double));
    backend.synchronize(compute);
    all_reduce_sum(communicator, totals);
    const double loss = totals[0] / totals[1];
    return {loss, std::exp(loss), static_cast<std::int64_t>(totals[1])};
}

}  // namespace sherd
