#pragma once
/// Who am I talking to: one interface for a single process, MPI, and later NCCL.
///
/// Device collectives are enqueued on a stream and run in its order; all ranks must enqueue the same ones in the same order. Sums are taken
/// in rank order, element by element, whatever the intervals: two tables over the same ranks give the same bits.
/// Host collectives block; they are for small agreements, never for tensors, and may run while device collectives are under way.
#include "sherd/runtime/error.hpp"
#include "sherd/tensor/interval.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sherd {

class Backend;
class Stream;

/// What a collective is for: entered with it wherever collectives are listed or reported.
struct CollectiveTag {
    std::string_view phase;  ///< "reduce gradients", "gather weights", ...: a literal
    int unit = -1;           ///< unit of the model; -1: none
};

/// Bytes that this rank sent, by kind.
struct Traffic {
    std::uint64_t reduce_scatter = 0, all_gather = 0, host = 0;
    std::uint64_t device() const noexcept { return reduce_scatter + all_gather; }
};

class Communicator {
  public:
    virtual ~Communicator() = default;
    virtual int rank() const noexcept = 0;
    virtual int size() const noexcept = 0;

    /// data [n] holds every rank's addends; afterwards data over owners[rank()] holds the sum over ranks, the rest is unspecified.
    virtual void reduce_scatter(Stream& stream, float* data, const IntervalTable& owners, CollectiveTag tag) = 0;
    /// Every rank holds its interval of data (elements of `element_bytes`); afterwards all hold everything.
    virtual void all_gather(Stream& stream, void* data, std::size_t element_bytes, const IntervalTable& owners, CollectiveTag tag) = 0;

    /// Every rank's bytes, by rank. Lengths may differ.
    virtual std::vector<std::string> exchange(std::string_view mine) = 0;

    /// Bytes of staging memory, for the table of memory.
    virtual std::uint64_t staging_bytes() const noexcept = 0;
    virtual Traffic traffic() const noexcept = 0;
};

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
    }
    agree(communicator, nullptr);
}

/// One process. Collectives move nothing.
std::unique_ptr<Communicator> make_single_communicator();

}  // namespace sherd
