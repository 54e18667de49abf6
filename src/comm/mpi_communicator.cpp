#include "comm/mpi_communicator.hpp"

#include "comm/mpi_check.hpp"

#include "sherd/backend/backend.hpp"

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

namespace sherd::detail {

namespace {

constexpr std::int64_t staging_floats = 1 << 20;  // 4 MiB over all peers
constexpr std::int64_t message_bytes = 64 << 20;  // MPI counts are int; also bounds what one message may hold up
constexpr int reduce_tag = 1, gather_tag = 2;

/// Waits for requests without burning the core that computes: MPI's own waits spin. Progress is made by each test.
void wait_all(std::vector<MPI_Request>& requests) {
    using namespace std::chrono_literals;
    if (requests.empty()) return;
    const auto start = std::chrono::steady_clock::now();
    for (int done = 0;;) {
        SHERD_MPI(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE));
        if (done != 0) break;
        const auto waited = std::chrono::steady_clock::now() - start;
        if (waited < 20us) continue;
        if (waited < 200us)
            std::this_thread::yield();
        else
            std::this_thread::sleep_for(waited < 5ms ? 20us : 100us);
    }
    requests.clear();
}

class MpiCommunicator final : public Communicator {
  public:
    MpiCommunicator(MPI_Comm parent, Backend* backend) : device_(parent), host_(parent), backend_(backend) {
        SHERD_MPI(MPI_Comm_rank(host_.get(), &rank_));
        SHERD_MPI(MPI_Comm_size(host_.get(), &size_));
        if (backend_ == nullptr || size_ == 1) return;
        slot_ = std::max<std::int64_t>(4096, staging_floats / size_);
        staging_.resize(static_cast<std::size_t>(slot_) * static_cast<std::size_t>(size_));
    }

    int rank() const noexcept override { return rank_; }
    int size() const noexcept override { return size_; }
    std::uint64_t staging_bytes() const noexcept override { return staging_.size() * sizeof(float); }
    Traffic traffic() const noexcept override { return {reduce_bytes_.load(), gather_bytes_.load(), host_bytes_.load()}; }

    void reduce_scatter(Stream& stream, float* data, const IntervalTable& owners, CollectiveTag) override {
        if (size_ > 1) backend_->host_task(stream, [this, data, owners] { reduce_scatter_now(data, owners); });
    }
    void all_gather(Stream& stream, void* data, std::size_t element_bytes, const IntervalTable& owners, CollectiveTag) override {
        if (size_ > 1) backend_->host_task(stream, [this, data, element_bytes, owners] { all_gather_now(data, element_bytes, owners); });
    }

    std::vector<std::string> exchange(std::string_view mine) override {
        const auto ranks = static_cast<std::size_t>(size_);
        const int length = static_cast<int>(mine.size());
        std::vector<int> lengths(ranks), starts(ranks);
        std::vector<MPI_Request> requests(1);
        SHERD_MPI(MPI_Iallgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, host_.get(), requests.data()));
        wait_all(requests);
        int total = 0;
        for (std::size_t r = 0; r < ranks; ++r) {
            starts[r] = total;
            total += lengths[r];
        }
        host_bytes_ += static_cast<std::uint64_t>(mine.size()) * (ranks - 1);
        if (total == 0) return std::vector<std::string>(ranks);
        std::string all(static_cast<std::size_t>(total), '\0');
        requests.resize(1);
        SHERD_MPI(MPI_Iallgatherv(mine.data(), length, MPI_BYTE, all.data(), lengths.data(), starts.data(), MPI_BYTE, host_.get(),
                                  requests.data()));
        wait_all(requests);
        std::vector<std::string> parts;
        for (std::size_t r = 0; r < ranks; ++r)
            parts.push_back(all.substr(static_cast<std::size_t>(starts[r]), static_cast<std::size_t>(lengths[r])));
        return parts;
    }

  private:
    /// Pairwise: each rank sends every owner its addends and sums its own interval in rank order, a slot at a time. Each rank sends and
    /// receives n (R-1)/R elements, the lower bound; the order of the sum is the same for every table.
    void reduce_scatter_now(float* data, const IntervalTable& owners) {
        std::int64_t longest = 0;
        for (const Interval& i : owners) longest = std::max(longest, i.size());
        for (std::int64_t at = 0; at < longest; at += slot_) {
            const Interval mine = chunk(owners, rank_, at);
            for (int peer = 0; peer < size_; ++peer) {
                if (peer == rank_) continue;
                const Interval theirs = chunk(owners, peer, at);
                if (!mine.empty())
                    post(MPI_Irecv(slot(peer), static_cast<int>(mine.size()), MPI_FLOAT, peer, reduce_tag, device_.get(), next()),
                         "MPI_Irecv");
                if (!theirs.empty())
                    post(
                        MPI_Isend(data + theirs.begin, static_cast<int>(theirs.size()), MPI_FLOAT, peer, reduce_tag, device_.get(), next()),
                        "MPI_Isend");
                reduce_bytes_ += static_cast<std::uint64_t>(theirs.size()) * sizeof(float);
            }
            wait_all(requests_);
            if (!mine.empty()) sum_in_rank_order(data + mine.begin, mine.size());
        }
    }

    void sum_in_rank_order(float* mine, std::int64_t n) {
        std::memcpy(slot(rank_), mine, static_cast<std::size_t>(n) * sizeof(float));
        std::memcpy(mine, slot(0), static_cast<std::size_t>(n) * sizeof(float));
        for (int r = 1; r < size_; ++r) {
            const float* addend = slot(r);
            for (std::int64_t i = 0; i < n; ++i) mine[i] += addend[i];
        }
    }

    void all_gather_now(void* data, std::size_t element_bytes, const IntervalTable& owners) {
        auto* bytes = static_cast<char*>(data);
        const std::int64_t step = message_bytes / static_cast<std::int64_t>(element_bytes);
        for (int peer = 0; peer < size_; ++peer) {
            if (peer == rank_) continue;
            for (std::int64_t at = owners[index(peer)].begin; at < owners[index(peer)].end; at += step) {
                const std::int64_t n = std::min(step, owners[index(peer)].end - at) * static_cast<std::int64_t>(element_bytes);
                post(MPI_Irecv(bytes + at * static_cast<std::int64_t>(element_bytes), static_cast<int>(n), MPI_BYTE, peer, gather_tag,
                               device_.get(), next()),
                     "MPI_Irecv");
            }
            for (std::int64_t at = owners[index(rank_)].begin; at < owners[index(rank_)].end; at += step) {
                const std::int64_t n = std::min(step, owners[index(rank_)].end - at) * static_cast<std::int64_t>(element_bytes);
                post(MPI_Isend(bytes + at * static_cast<std::int64_t>(element_bytes), static_cast<int>(n), MPI_BYTE, peer, gather_tag,
                               device_.get(), next()),
                     "MPI_Isend");
                gather_bytes_ += static_cast<std::uint64_t>(n);
            }
        }
        wait_all(requests_);
    }

    static std::size_t index(int rank) noexcept { return static_cast<std::size_t>(rank); }
    Interval chunk(const IntervalTable& owners, int rank, std::int64_t at) const {
        const Interval whole = owners[index(rank)];
        return intersect(whole, {whole.begin + at, whole.begin + at + slot_});
    }
    float* slot(int rank) { return staging_.data() + static_cast<std::size_t>(rank) * static_cast<std::size_t>(slot_); }
    MPI_Request* next() { return &requests_.emplace_back(MPI_REQUEST_NULL); }
    static void post(int code, const char* call) { check_mpi(code, call, __FILE__, __LINE__); }

    MpiComm device_, host_;  // two, so that a stream and the host never match each other's messages
    Backend* backend_;
    int rank_ = 0, size_ = 1;
    std::int64_t slot_ = 0;
    std::vector<float> staging_;
    std::vector<MPI_Request> requests_;
    std::atomic<std::uint64_t> reduce_bytes_{0}, gather_bytes_{0}, host_bytes_{0};
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm parent, Backend* backend) {
    return std::make_unique<MpiCommunicator>(parent, backend);
}

}  // namespace sherd::detail
