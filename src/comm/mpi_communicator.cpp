#include "comm/mpi_communicator.hpp"

#include "comm/mpi_check.hpp"
#include "comm/mpi_wait.hpp"
#include "comm/staged_movement.hpp"
#include "comm/traffic_counters.hpp"
#include "comm/wire.hpp"

#include "sherd/backend/backend.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace sherd::detail {

namespace {

constexpr std::int64_t staging_elements = 1 << 20;  // over all peers: 4 MiB to receive into, 2 MiB for 16-bit wires to send from
constexpr std::int64_t message_bytes = 64 << 20;    // MPI counts are int; also bounds what one message may hold up
constexpr int sum_tag = 1, copy_tag = 2, staged_tag = 3;

/// Ranks of the job, by rank of the communicator.
std::vector<int> find_world_ranks(MPI_Comm communicator, int size) {
    std::vector<int> here(static_cast<std::size_t>(size)), world(here.size());
    std::iota(here.begin(), here.end(), 0);
    MPI_Group part = MPI_GROUP_NULL, all = MPI_GROUP_NULL;
    SHERD_MPI(MPI_Comm_group(communicator, &part));
    SHERD_MPI(MPI_Comm_group(MPI_COMM_WORLD, &all));
    SHERD_MPI(MPI_Group_translate_ranks(part, size, here.data(), all, world.data()));
    SHERD_MPI(MPI_Group_free(&part));
    SHERD_MPI(MPI_Group_free(&all));
    return world;
}

/// Messages of MPI between the ranks of a communicator.
class MpiMessages final : public Messages {
  public:
    MpiMessages(MPI_Comm communicator, std::vector<int> world_ranks, const WaitLimits& limits)
        : communicator_(communicator), world_ranks_(std::move(world_ranks)), limits_(limits) {}
    void receive(int peer, void* to, std::int64_t bytes) override {
        SHERD_MPI(MPI_Irecv(to, static_cast<int>(bytes), MPI_BYTE, peer, staged_tag, communicator_, next(peer)));
    }
    void send(int peer, const void* from, std::int64_t bytes) override {
        SHERD_MPI(MPI_Isend(from, static_cast<int>(bytes), MPI_BYTE, peer, staged_tag, communicator_, next(peer)));
    }
    void finish(CollectiveTag tag) override { pending_.wait(limits_, text_of(tag)); }

  private:
    MPI_Request* next(int peer) { return pending_.add(world_ranks_[static_cast<std::size_t>(peer)]); }
    MPI_Comm communicator_;
    const std::vector<int> world_ranks_;
    const WaitLimits limits_;
    PendingMessages pending_;
};

class MpiCommunicator final : public Communicator {
  public:
    MpiCommunicator(MPI_Comm parent, Backend* backend, std::vector<int> nodes, std::shared_ptr<TrafficCounters> counters,
                    const WaitLimits& limits)
        : device_(parent), host_(parent), backend_(backend), nodes_(std::move(nodes)), counters_(std::move(counters)), limits_(limits) {
        SHERD_MPI(MPI_Comm_rank(host_.get(), &rank_));
        SHERD_MPI(MPI_Comm_size(host_.get(), &size_));
        nodes_.resize(static_cast<std::size_t>(size_), 0);
        world_ranks_ = find_world_ranks(device_.get(), size_);
        if (backend_ == nullptr) return;
        if (!backend_->host_reads_memory()) {
            messages_ = std::make_unique<MpiMessages>(device_.get(), world_ranks_, limits_);
            staged_ = std::make_unique<StagedMovement>(*backend_, *messages_, rank_, size_);
            return;
        }
        if (size_ == 1) return;
        slot_ = std::max<std::int64_t>(4096, staging_elements / size_);
        receive_.resize(static_cast<std::size_t>(slot_ * size_));
        send_.resize(static_cast<std::size_t>(slot_ * size_));
    }

    int rank() const noexcept override { return rank_; }
    int size() const noexcept override { return size_; }
    std::uint64_t staging_bytes() const noexcept override {
        if (staged_) return staged_->bytes();
        return receive_.size() * sizeof(float) + send_.size() * sizeof(std::uint16_t);
    }
    Traffic traffic() const noexcept override { return counters_->read(); }

    void redistribute(Stream& stream, const Redistribution& m, CollectiveTag tag) override {
        if (staged_) {
            const auto [all, between] = sent_bytes(m, rank_, nodes_);
            counters_->add(tag.phase, all, between);
            return staged_->enqueue(stream, m, tag);
        }
        backend_->host_task(stream, [this, m, tag] {
            if (m.mode == Redistribution::Mode::sum && size_ > 1)
                sum(m, tag);
            else
                copy(m, tag);
        });
    }

    std::vector<std::string> exchange(std::string_view mine) override {
        const auto ranks = static_cast<std::size_t>(size_);
        const int length = static_cast<int>(mine.size());
        std::vector<int> lengths(ranks), starts(ranks);
        MPI_Request request = MPI_REQUEST_NULL;
        SHERD_MPI(MPI_Iallgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, host_.get(), &request));
        wait_for(request, limits_);
        int total = 0;
        for (std::size_t r = 0; r < ranks; ++r) {
            starts[r] = total;
            total += lengths[r];
        }
        if (total == 0) return std::vector<std::string>(ranks);
        std::string all(static_cast<std::size_t>(total), '\0');
        SHERD_MPI(
            MPI_Iallgatherv(mine.data(), length, MPI_BYTE, all.data(), lengths.data(), starts.data(), MPI_BYTE, host_.get(), &request));
        wait_for(request, limits_);
        std::vector<std::string> parts;
        for (std::size_t r = 0; r < ranks; ++r)
            parts.push_back(all.substr(static_cast<std::size_t>(starts[r]), static_cast<std::size_t>(lengths[r])));
        return parts;
    }

    std::unique_ptr<Communicator> split(int color) override {
        std::vector<int> nodes;
        const auto colors = exchange(std::to_string(color));
        for (std::size_t r = 0; r < colors.size(); ++r)
            if (std::stoi(colors[r]) == color) nodes.push_back(nodes_[r]);
        const MpiComm part(host_.get(), color, rank_);
        return std::make_unique<MpiCommunicator>(part.get(), backend_, std::move(nodes), counters_, limits_);
    }

  private:
    /// Each rank sends every owner its addends and sums its own interval, a slot at a time: n (R-1)/R elements sent and received where all
    /// hold everything and owners are equal, the lower bound. Addends are added in rank order, each rank's own in its place.
    void sum(const Redistribution& m, CollectiveTag tag) {
        const std::int64_t end = longest(m.owners);
        for (std::int64_t at = 0; at < end; at += slot_) {
            const Interval mine = window(m.owners[index(rank_)], at, slot_);
            for (int peer = 0; peer < size_; ++peer) {
                if (peer == rank_) continue;
                receive_addends(peer, intersect(m.sources[index(peer)], mine), m.wire);
                send_addends(peer, m, intersect(m.sources[index(rank_)], window(m.owners[index(peer)], at, slot_)), tag);
            }
            pending_.wait(limits_, text_of(tag));
            add_up_window(m, mine);
        }
    }

    void receive_addends(int peer, Interval part, DType wire) {
        if (part.empty()) return;
        SHERD_MPI(MPI_Irecv(slot(peer), bytes(part.size(), wire), MPI_BYTE, peer, sum_tag, device_.get(), next(peer)));
    }

    void send_addends(int peer, const Redistribution& m, Interval part, CollectiveTag tag) {
        if (part.empty()) return;
        const float* from = static_cast<const float*>(m.from) + (part.begin - m.sources[index(rank_)].begin);
        const void* data = from;
        if (m.wire != DType::f32) {
            std::uint16_t* low = send_.data() + index(peer) * static_cast<std::size_t>(slot_);
            encode(from, part.size(), m.wire, low);
            data = low;
        }
        SHERD_MPI(MPI_Isend(data, bytes(part.size(), m.wire), MPI_BYTE, peer, sum_tag, device_.get(), next(peer)));
        count(peer, static_cast<std::uint64_t>(bytes(part.size(), m.wire)), tag);
    }

    void add_up_window(const Redistribution& m, Interval mine) {
        if (mine.empty()) return;
        const Interval held = m.sources[index(rank_)];
        addends_.clear();
        for (int r = 0; r < size_; ++r) {
            const Interval part = intersect(m.sources[index(r)], mine);
            if (r == rank_)
                addends_.push_back({part, static_cast<const float*>(m.from) + (part.begin - held.begin), DType::f32});
            else
                addends_.push_back({part, slot(r), m.wire});
        }
        add_up(mine, addends_, static_cast<float*>(m.to) + (mine.begin - m.owners[index(rank_)].begin));
    }

    void copy(const Redistribution& m, CollectiveTag tag) {
        const auto element = static_cast<std::int64_t>(size_of(m.dtype));
        const Interval held = m.sources[index(rank_)], wanted = m.owners[index(rank_)];
        const auto* from = static_cast<const char*>(m.from);
        auto* to = static_cast<char*>(m.to);
        const std::int64_t step = message_bytes / element;
        for (int peer = 0; peer < size_; ++peer) {
            if (peer == rank_) continue;
            const Interval in = intersect(m.sources[index(peer)], wanted), out = intersect(held, m.owners[index(peer)]);
            for (std::int64_t at = in.begin; at < in.end; at += step)
                SHERD_MPI(MPI_Irecv(to + (at - wanted.begin) * element, bytes(std::min(step, in.end - at), m.dtype), MPI_BYTE, peer,
                                    copy_tag, device_.get(), next(peer)));
            for (std::int64_t at = out.begin; at < out.end; at += step)
                SHERD_MPI(MPI_Isend(from + (at - held.begin) * element, bytes(std::min(step, out.end - at), m.dtype), MPI_BYTE, peer,
                                    copy_tag, device_.get(), next(peer)));
            if (!out.empty()) count(peer, static_cast<std::uint64_t>(out.size() * element), tag);
        }
        const Interval own = intersect(held, wanted);
        const char* source = from + (own.begin - held.begin) * element;
        char* destination = to + (own.begin - wanted.begin) * element;
        if (source != destination && !own.empty()) std::memcpy(destination, source, static_cast<std::size_t>(own.size() * element));
        pending_.wait(limits_, text_of(tag));
    }

    void count(int peer, std::uint64_t sent, CollectiveTag tag) {
        counters_->add(tag.phase, sent, nodes_[index(peer)] != nodes_[index(rank_)] ? sent : 0);
    }
    MPI_Request* next(int peer) { return pending_.add(world_ranks_[index(peer)]); }
    static std::size_t index(int rank) noexcept { return static_cast<std::size_t>(rank); }
    static int bytes(std::int64_t elements, DType type) noexcept {
        return static_cast<int>(elements * static_cast<std::int64_t>(size_of(type)));
    }
    float* slot(int rank) { return receive_.data() + index(rank) * static_cast<std::size_t>(slot_); }

    MpiComm device_, host_;  // two, so that a stream and the host never match each other's messages
    Backend* backend_;
    std::vector<int> nodes_;
    std::shared_ptr<TrafficCounters> counters_;
    const WaitLimits limits_;
    std::vector<int> world_ranks_;  ///< by rank here, for messages
    int rank_ = 0, size_ = 1;
    std::int64_t slot_ = 0;
    std::vector<float> receive_;
    std::vector<std::uint16_t> send_;
    std::vector<Addend> addends_;
    PendingMessages pending_;
    std::unique_ptr<MpiMessages> messages_;
    std::unique_ptr<StagedMovement> staged_;  ///< for memory that the host cannot read
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm parent, Backend* backend, std::vector<int> nodes, const WaitLimits& limits) {
    return std::make_unique<MpiCommunicator>(parent, backend, std::move(nodes), std::make_shared<TrafficCounters>(), limits);
}

}  // namespace sherd::detail
