#include "fake_nccl_wire.hpp"

#include "execution.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

namespace emu::nccl {

namespace {
constexpr std::size_t kSlotBytes = std::size_t{64} << 20, kChannelBytes = std::size_t{16} << 20;  // sparse: only what is used takes memory
}

struct Slot {
    std::atomic<unsigned long> joined, posted, done, splits;
    std::array<std::pair<int, int>, 64> colors;  // and keys, by split
    Call call;
    alignas(64) char data[kSlotBytes];
};

struct Channel {
    std::atomic<unsigned long> sent, taken;
    std::size_t count;
    ncclDataType_t type;
    alignas(64) char data[kChannelBytes];
};

const char* name_of(Kind kind) {
    constexpr const char* names[] = {"ncclAllGather", "ncclReduceScatter", "ncclAllReduce", "ncclBroadcast", "ncclReduce"};
    return names[static_cast<int>(kind)];
}

std::size_t size_of(ncclDataType_t t) {
    switch (t) {
        case ncclInt8:
        case ncclUint8:
            return 1;
        case ncclFloat16:
        case ncclBfloat16:
            return 2;
        case ncclInt32:
        case ncclUint32:
        case ncclFloat32:
            return 4;
        case ncclInt64:
        case ncclUint64:
        case ncclFloat64:
            return 8;
        default:
            throw Fault("the stand-in of NCCL knows no data type " + std::to_string(t));
    }
}

Wire::Wire(std::string n, int r, int size)
    : name(std::move(n)), rank(r), ranks(size), sends(static_cast<std::size_t>(size)), receives(static_cast<std::size_t>(size)) {
    const auto all = static_cast<std::size_t>(ranks);
    bytes_ = sizeof(Slot) * all + sizeof(Channel) * all * all;
    const int file = shm_open(name.c_str(), O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, static_cast<off_t>(bytes_)) != 0) throw Fault("the stand-in of NCCL cannot make shared memory " + name);
    map_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    close(file);
    if (map_ == MAP_FAILED) throw Fault("the stand-in of NCCL cannot map shared memory " + name);
}

void Wire::join() {
    slot(rank).joined.store(1);
}

Wire::~Wire() {
    munmap(map_, bytes_);
    shm_unlink(name.c_str());
}

Slot& Wire::slot(int r) const {
    return static_cast<Slot*>(map_)[r];
}
Channel& Wire::channel(int from, int to) const {
    return reinterpret_cast<Channel*>(static_cast<Slot*>(map_) + ranks)[from * ranks + to];
}

bool Wire::complete() const {
    for (int r = 0; r < ranks; ++r)
        if (slot(r).joined.load() == 0) return false;
    shm_unlink(name.c_str());  // all have it open; who comes second finds it gone
    return true;
}

std::vector<std::pair<int, int>> Wire::exchange(int color, int key) {
    Slot& mine = slot(rank);
    if (splits >= mine.colors.size()) throw Fault("the stand-in of NCCL: too many splits of one communicator");
    mine.colors[splits] = {color, key};
    mine.splits.store(++splits);
    std::vector<std::pair<int, int>> all;
    for (int r = 0; r < ranks; ++r) {
        while (slot(r).splits.load() < splits) std::this_thread::sleep_for(std::chrono::microseconds(50));
        all.push_back(slot(r).colors[splits - 1]);
    }
    return all;
}

Send::Send(std::shared_ptr<Wire> wire, int peer, const void* from, std::size_t count, ncclDataType_t type)
    : Transfer(std::move(wire)),
      peer_(peer),
      from_(from),
      count_(count),
      type_(type),
      number_(++wire_.sends[static_cast<std::size_t>(peer)]) {}

bool Send::step() {
    if (wire_.aborted) return true;
    if (wire_.broken) return false;
    Channel& c = wire_.channel(wire_.rank, peer_);
    if (!posted_) {
        if (c.sent.load() != number_ - 1 || c.taken.load() != number_ - 1) return false;
        if (count_ * size_of(type_) > kChannelBytes) throw Fault("the stand-in of NCCL: message too large");
        std::memcpy(c.data, from_, count_ * size_of(type_));
        c.count = count_;
        c.type = type_;
        c.sent.store(number_);
        posted_ = true;
    }
    return c.taken.load() >= number_;
}

Receive::Receive(std::shared_ptr<Wire> wire, int peer, void* to, std::size_t count, ncclDataType_t type)
    : Transfer(std::move(wire)),
      peer_(peer),
      to_(to),
      count_(count),
      type_(type),
      number_(++wire_.receives[static_cast<std::size_t>(peer)]) {}

bool Receive::step() {
    if (wire_.aborted) return true;
    Channel& c = wire_.channel(peer_, wire_.rank);
    if (wire_.broken || c.sent.load() < number_ || c.taken.load() != number_ - 1) return false;
    if (c.count != count_ || c.type != type_)
        throw Fault("rank " + std::to_string(peer_) + " sends " + std::to_string(c.count) + " elements of type " + std::to_string(c.type) +
                    ", rank " + std::to_string(wire_.rank) + " receives " + std::to_string(count_) + " of type " + std::to_string(type_));
    std::memcpy(to_, c.data, count_ * size_of(type_));
    c.taken.store(number_);
    return true;
}

// ---- collectives --------------------------------------------------------------------------------------------------------------------

namespace {

std::string describe(const Call& c) {
    return std::string(name_of(c.kind)) + " of " + std::to_string(c.count) + " (type " + std::to_string(c.type) + ", operation " +
           std::to_string(c.operation) + ", root " + std::to_string(c.root) + ")";
}

}  // namespace

void reduce(void* to, const std::vector<const char*>& from, ncclDataType_t type, ncclRedOp_t operation, std::size_t count, int first);

Collective::Collective(std::shared_ptr<Wire> wire, Call call, const void* from, void* to)
    : Transfer(std::move(wire)), call_(call), from_(from), to_(to), number_(++wire_.collectives) {
    // NCCL's in-place forms; any other overlap is undefined
    const char* expected = static_cast<const char*>(to);
    const std::size_t offset = unit() * static_cast<std::size_t>(wire_.rank);
    if (call.kind == Kind::all_gather) expected += offset;
    const char* given = static_cast<const char*>(from) + (call.kind == Kind::reduce_scatter ? offset : 0);
    const auto *a = static_cast<const char*>(from), *b = static_cast<const char*>(to);
    if (reads() && writes() && a < b + to_bytes() && b < a + from_bytes() && given != expected)
        throw Fault(describe(call) + ": input and output overlap, and not as its in-place form wants");
}

std::size_t Collective::from_bytes() const {
    return call_.kind == Kind::reduce_scatter ? unit() * static_cast<std::size_t>(wire_.ranks) : unit();
}
std::size_t Collective::to_bytes() const {
    return call_.kind == Kind::all_gather ? unit() * static_cast<std::size_t>(wire_.ranks) : unit();
}
bool Collective::reads() const {
    return call_.kind != Kind::broadcast || wire_.rank == call_.root;
}
bool Collective::writes() const {
    return call_.kind != Kind::reduce || wire_.rank == call_.root;
}

void Collective::post(Slot& mine) {
    if (from_bytes() > kSlotBytes) throw Fault("the stand-in of NCCL: collective too large");
    if (reads()) std::memcpy(mine.data, from_, from_bytes());
    mine.call = call_;
    mine.posted.store(number_);
    posted_ = true;
}

void Collective::check_agreement() const {
    for (int r = 0; r < wire_.ranks; ++r) {
        const Call& other = wire_.slot(r).call;
        if (other == call_) continue;
        throw Fault("collective " + std::to_string(number_) + ": rank " + std::to_string(wire_.rank) + " is in " + describe(call_) +
                    ", rank " + std::to_string(r) + " in " + describe(other));
    }
}

bool Collective::step() {
    if (wire_.aborted) return true;
    if (wire_.broken) return false;
    Slot& mine = wire_.slot(wire_.rank);
    if (!posted_) {
        if (mine.posted.load() != number_ - 1) return false;  // an earlier collective of this communicator waits on another stream
        for (int r = 0; r < wire_.ranks; ++r)
            if (wire_.slot(r).done.load() < number_ - 1) return false;  // a peer still reads the previous one
        post(mine);
    }
    for (int r = 0; r < wire_.ranks; ++r)
        if (wire_.slot(r).posted.load() < number_) return false;
    check_agreement();
    finish();
    mine.done.store(number_);
    return true;
}

void Collective::finish() const {
    const auto place = static_cast<std::size_t>(wire_.rank);
    std::vector<const char*> data;
    for (int r = 0; r < wire_.ranks; ++r) data.push_back(wire_.slot(r).data + (call_.kind == Kind::reduce_scatter ? unit() * place : 0));
    switch (call_.kind) {
        case Kind::all_gather:
            for (std::size_t r = 0; r < data.size(); ++r) std::memcpy(static_cast<char*>(to_) + unit() * r, data[r], unit());
            return;
        case Kind::broadcast:
            std::memcpy(to_, data[static_cast<std::size_t>(call_.root)], unit());
            return;
        case Kind::reduce_scatter:  // a ring: the owner's addend comes last
            return reduce(to_, data, call_.type, call_.operation, call_.count, wire_.rank + 1);
        case Kind::reduce:
            if (writes()) reduce(to_, data, call_.type, call_.operation, call_.count, wire_.rank + 1);
            return;
        case Kind::all_reduce:
            return reduce(to_, data, call_.type, call_.operation, call_.count, 0);
    }
}

}  // namespace emu::nccl
