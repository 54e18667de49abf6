#include "sherd/data/prefetch.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace sherd {

StepReader::StepReader(const TokenGroup& group) : group_(group), thread_([this] { work(); }) {}

StepReader::~StepReader() {
    {
        const std::scoped_lock lock(mutex_);
        stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

void StepReader::request(std::vector<std::int64_t> document_indices) {
    {
        const std::scoped_lock lock(mutex_);
        requests_.push_back(std::move(document_indices));
        ++pending_;
    }
    changed_.notify_all();
}

std::vector<Document> StepReader::take() {
    std::unique_lock lock(mutex_);
    if (pending_ == 0) throw std::logic_error("StepReader::take without a request");
    changed_.wait(lock, [this] { return !results_.empty(); });
    Result result = std::move(results_.front());
    results_.pop_front();
    --pending_;
    if (result.error) std::rethrow_exception(result.error);
    return std::move(result.documents);
}

void StepReader::work() {
    for (;;) {
        std::vector<std::int64_t> indices;
        {
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [this] { return stop_ || !requests_.empty(); });
            if (stop_) return;
            indices = std::move(requests_.front());
            requests_.pop_front();
        }
        Result result;
        try {
            result = read(indices);
        } catch (...) {
            result.error = std::current_exception();
        }
        {
            const std::scoped_lock lock(mutex_);
            if (stop_) return;
            results_.push_back(std::move(result));
        }
        changed_.notify_all();
    }
}

/// By rising index, so that documents of one compressed chunk follow one another and it is decompressed once.
StepReader::Result StepReader::read(const std::vector<std::int64_t>& indices) const {
    std::vector<std::size_t> by_index(indices.size());
    std::iota(by_index.begin(), by_index.end(), std::size_t{0});
    std::sort(by_index.begin(), by_index.end(), [&](std::size_t a, std::size_t b) { return indices[a] < indices[b]; });
    Result result;
    result.documents.resize(indices.size());
    for (std::size_t i = 0; i < by_index.size() && !stop_; ++i) {
        Document& target = result.documents[by_index[i]];
        target = i > 0 && indices[by_index[i]] == indices[by_index[i - 1]] ? result.documents[by_index[i - 1]]
                                                                           : group_.read(indices[by_index[i]]);
    }
    return result;
}

}  // namespace sherd
