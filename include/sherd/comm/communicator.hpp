#pragma once
/// Who am I talking to: one interface for a single process, MPI, and NCCL.
///
/// Device collectives are enqueued on a stream and run in its order; all ranks must enqueue the same ones in the same order. Sums are taken
/// in rank order, element by element, whatever the intervals: two tables over the same ranks give the same bits; but for NCCL's own
/// collectives (nccl.hpp). Host collectives block; they are for small agreements, never for tensors, and may run while device collectives
/// are under way.
#include "sherd/runtime/error.hpp"
#include "sherd/tensor/dtype.hpp"
#include "sherd/tensor/interval.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sherd {

class Backend;
class Stream;

/// What a collective is for; every one is entered with it wherever they are counted, listed or reported.
enum class CommunicationPhase { gather_weights, reduce_gradients, finish_gradients, refresh_weights, other };
inline constexpr std::size_t communication_phases = 5;
/// "gather weights", ...
std::string_view name_of(CommunicationPhase phase) noexcept;

struct CollectiveTag {
    CommunicationPhase phase = CommunicationPhase::other;
    int unit = -1;  ///< unit of the model; -1: none
};

/// "'gather weights' of unit 3"
std::string text_of(CollectiveTag tag);

/// How long a device collective or an agreement may wait for other ranks without any progress, in seconds.
struct WaitLimits {
    double hang_report_s = 20;  ///< then it is reported, once
    double timeout_s = 600;     ///< then it ends the run

    /// For agreements before and beside training, where a rank may read or write for as long as it takes.
    static constexpr WaitLimits none() noexcept {
        return {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
    }
};

/// Bytes that this rank sent in device collectives, over all communicators split from one.
struct Traffic {
    std::array<std::uint64_t, communication_phases> bytes{};          ///< by phase, to all ranks
    std::array<std::uint64_t, communication_phases> between_nodes{};  ///< of these, to ranks of other nodes
    std::uint64_t total() const noexcept { return std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0}); }
    std::uint64_t total_between_nodes() const noexcept {
        return std::accumulate(between_nodes.begin(), between_nodes.end(), std::uint64_t{0});
    }
};

/// A movement of n elements from one table of intervals to another. The tables are by rank of the communicator; an interval may be empty,
/// several ranks may hold or want the same element.
struct Redistribution {
    enum class Mode {
        copy,  ///< to = the element of the one rank whose source interval holds it (sources do not overlap)
        sum    ///< to = the sum over the ranks whose source intervals hold it, in rank order; fp32
    };
    Mode mode;
    DType dtype;       ///< of the elements in memory
    DType wire;        ///< of the elements on the way: fp32, bf16 or fp16 for sums, else dtype
    const void* from;  ///< element sources[rank()].begin and those after it
    void* to;          ///< element owners[rank()].begin and those after it; may be the same memory as `from`
    IntervalTable sources, owners;
};

class Communicator {
  public:
    virtual ~Communicator() = default;
    virtual int rank() const noexcept = 0;
    virtual int size() const noexcept = 0;

    /// The one device collective that all others are cases of.
    virtual void redistribute(Stream& stream, const Redistribution& movement, CollectiveTag tag) = 0;

    /// Every rank's bytes, by rank. Lengths may differ.
    virtual std::vector<std::string> exchange(std::string_view mine) = 0;

    /// The ranks that gave the same color, in the order of their ranks here; collective.
    virtual std::unique_ptr<Communicator> split(int color) = 0;

    /// Bytes of the host's memory that it holds for staging.
    virtual std::uint64_t staging_bytes() const noexcept = 0;
    /// Bytes of a GPU's memory that it and all that were split from it share for staging, and allocate when they first need it.
    virtual std::uint64_t device_staging_bytes() const noexcept { return 0; }
    virtual Traffic traffic() const noexcept = 0;
};

/// data [n] holds every rank's addends; afterwards data over owners[rank()] holds the sum over ranks, the rest is unspecified.
void reduce_scatter(Communicator& communicator, Stream& stream, float* data, const IntervalTable& owners, CollectiveTag tag);
/// Every rank holds its interval of data; afterwards all hold everything.
void all_gather(Communicator& communicator, Stream& stream, void* data, DType dtype, const IntervalTable& owners, CollectiveTag tag);

/// Bytes that a rank sends in a redistribution, and how many of them to ranks of other nodes (nodes: by rank).
std::pair<std::uint64_t, std::uint64_t> sent_bytes(const Redistribution& movement, int rank, const std::vector<int>& nodes);

/// values = sum over ranks, in rank order.
void all_reduce_sum(Communicator& communicator, std::span<double> values);
/// Whether it is true on any rank.
bool any_of_ranks(Communicator& communicator, bool value);
/// Rank 0's bytes on every rank.
std::string broadcast(Communicator& communicator, const std::string& value);
void barrier(Communicator& communicator);

/// The same error on every rank, agreed on before anyone threw it: ranks may end in order, rank 0 prints.
class AgreedError : public Error {
  public:
    using Error::Error;
};

/// Turns a local failure into one of all ranks: exchanges what each rank caught (nothing where all is well) and throws the error of
/// the lowest failing rank as AgreedError everywhere, naming rank and host where there are several.
void agree(Communicator& communicator, const Error* mine);

/// Runs `work`, which must hold no collective of this communicator, and agrees on its outcome.
template <class Work>
void collectively(Communicator& communicator, Work work) {
    try {
        work();
    } catch (const Error& e) {
        agree(communicator, &e);
        return;
    } catch (const std::bad_alloc&) {
        const DeviceError e("out of memory");
        agree(communicator, &e);
        return;
    } catch (const std::exception& unexpected) {
        const InputError e("unexpected error: {}", unexpected.what());
        agree(communicator, &e);
        return;
    }
    agree(communicator, nullptr);
}

/// One process. Collectives move nothing, but copy where source and destination differ.
/// backend may be nullptr: then only host collectives are allowed.
std::unique_ptr<Communicator> make_single_communicator(Backend* backend);

}  // namespace sherd
