#pragma once
/// Reads the documents of the next step while the current one computes.
#include "sherd/data/token_file.hpp"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace sherd {

/// One background thread that reads documents of one group. While requests are under way nobody else may read from the group's file;
/// TokenGroup::length and documents may be called. request() and take() belong to one thread.
class StepReader {
  public:
    /// `group` must outlive the reader.
    explicit StepReader(const TokenGroup& group);
    /// Finishes the document being read, drops the rest, joins the thread.
    ~StepReader();
    StepReader(const StepReader&) = delete;
    StepReader& operator=(const StepReader&) = delete;

    /// Queues the documents to read next and returns at once. An index may occur more than once.
    void request(std::vector<std::int64_t> document_indices);
    /// Documents of the oldest request not yet taken, in the order requested; waits for them. Rethrows what reading them threw; later
    /// requests are still served. Throws std::logic_error if nothing was requested.
    std::vector<Document> take();

  private:
    struct Result {
        std::vector<Document> documents;
        std::exception_ptr error;
    };
    void work();
    Result read(const std::vector<std::int64_t>& indices) const;

    const TokenGroup& group_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::vector<std::int64_t>> requests_;
    std::deque<Result> results_;
    std::int64_t pending_ = 0;       ///< requested and not yet taken
    std::atomic<bool> stop_{false};  ///< set under the mutex, also looked at between documents
    std::thread thread_;             ///< last: it uses all of the above
};

}  // namespace sherd
