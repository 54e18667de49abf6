#pragma once
/// What moves between the ranks of a stand-in NCCL communicator: threads or processes of one machine, over a shared mapping that the
/// unique id names. Every transfer is a step of a stream's operation: it finishes once all who take part have come.
#include <atomic>
#include <cstddef>
#include <memory>
#include <nccl.h>
#include <string>
#include <utility>
#include <vector>

namespace emu::nccl {

enum class Kind : int { all_gather, reduce_scatter, all_reduce, broadcast, reduce };
const char* name_of(Kind kind);
std::size_t size_of(ncclDataType_t type);

/// What all ranks must agree on.
struct Call {
    Kind kind;
    std::size_t count;
    ncclDataType_t type;
    ncclRedOp_t operation;
    int root;
    bool operator==(const Call&) const = default;
};

struct Slot;
struct Channel;

class Wire {
  public:
    /// Throws Fault where the mapping cannot be made.
    Wire(std::string name, int rank, int ranks);
    ~Wire();
    Wire(const Wire&) = delete;

    const std::string name;
    const int rank, ranks;
    std::atomic<bool> aborted{false}, broken{false};
    std::atomic<int> under_way{0};
    unsigned long collectives = 0, splits = 0;   ///< begun here, for their numbers
    std::vector<unsigned long> sends, receives;  ///< likewise, by peer

    void join();            ///< this rank has come
    bool complete() const;  ///< all ranks have come; the first to see it removes the name
    /// Every rank's (color, key), by rank; blocks.
    std::vector<std::pair<int, int>> exchange(int color, int key);

    Slot& slot(int rank) const;
    Channel& channel(int from, int to) const;

  private:
    void* map_ = nullptr;
    std::size_t bytes_ = 0;
};

/// One transfer of one rank.
class Transfer {
  public:
    explicit Transfer(std::shared_ptr<Wire> wire) : owner_(std::move(wire)), wire_(*owner_) { ++wire_.under_way; }
    Transfer(const Transfer&) = delete;
    virtual ~Transfer() { --wire_.under_way; }
    /// False: others are late. Throws Fault where ranks disagree.
    virtual bool step() = 0;

  private:
    std::shared_ptr<Wire> owner_;

  protected:
    Wire& wire_;
};

class Collective final : public Transfer {
  public:
    Collective(std::shared_ptr<Wire> wire, Call call, const void* from, void* to);
    bool step() override;
    std::size_t from_bytes() const;
    std::size_t to_bytes() const;
    bool reads() const;   ///< whether this rank's input counts
    bool writes() const;  ///< whether this rank gets a result

  private:
    void post(Slot& mine);
    void check_agreement() const;
    void finish() const;
    std::size_t unit() const { return call_.count * size_of(call_.type); }

    Call call_;
    const void* from_;
    void* to_;
    unsigned long number_;
    bool posted_ = false;
};

/// A send ends when it was received: who sends and receives from each other outside of a group waits for ever, as with NCCL.
class Send final : public Transfer {
  public:
    Send(std::shared_ptr<Wire> wire, int peer, const void* from, std::size_t count, ncclDataType_t type);
    bool step() override;

  private:
    int peer_;
    const void* from_;
    std::size_t count_;
    ncclDataType_t type_;
    unsigned long number_;
    bool posted_ = false;
};

class Receive final : public Transfer {
  public:
    Receive(std::shared_ptr<Wire> wire, int peer, void* to, std::size_t count, ncclDataType_t type);
    bool step() override;

  private:
    int peer_;
    void* to_;
    std::size_t count_;
    ncclDataType_t type_;
    unsigned long number_;
};

}  // namespace emu::nccl
