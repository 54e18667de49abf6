/// Stand-in for libnccl between ranks that are threads or processes of one machine. A collective is an operation of its stream:
/// it posts its input into a shared mapping, and finishes when all ranks have posted the same collective.
#include "cuda_emulation.hpp"
#include "fake_device.hpp"

#include <atomic>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <nccl.h>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

namespace {

constexpr std::size_t kSlotBytes = std::size_t{64} << 20;  // sparse: only what is used takes memory

enum class Kind : int { all_gather, reduce_scatter, all_reduce, broadcast };
constexpr const char* kNames[] = {"ncclAllGather", "ncclReduceScatter", "ncclAllReduce", "ncclBroadcast"};

struct Call {
    Kind kind;
    std::size_t count;
    ncclDataType_t type;
    ncclRedOp_t operation;
    int root;
    bool operator==(const Call&) const = default;
};

struct Slot {
    std::atomic<unsigned long> joined, posted, done;
    Call call;
    alignas(64) char data[kSlotBytes];
};

std::size_t size_of(ncclDataType_t t) {
    return t == ncclFloat32 || t == ncclInt32 || t == ncclUint32 ? 4
           : t == ncclFloat16 || t == ncclBfloat16               ? 2
           : t == ncclInt8 || t == ncclUint8                     ? 1
                                                                 : 8;
}

template <class T, class Wide>
void fold(void* to, const char* const* from, int ranks, std::size_t count, ncclRedOp_t op) {
    for (std::size_t i = 0; i < count; ++i) {
        Wide total{};
        for (int r = 0; r < ranks; ++r) {
            T x;
            std::memcpy(&x, from[r] + i * sizeof(T), sizeof(T));
            const Wide v = static_cast<Wide>(x);
            total = r == 0 ? v : op == ncclMax ? std::max(total, v) : op == ncclMin ? std::min(total, v) : total + v;
        }
        const T rounded = static_cast<T>(total);
        std::memcpy(static_cast<char*>(to) + i * sizeof(T), &rounded, sizeof(T));
    }
}

void reduce(void* to, const char* const* from, int ranks, const Call& c, std::size_t count) {
    switch (c.type) {
        case ncclFloat32:
            return fold<float, float>(to, from, ranks, count, c.operation);
        case ncclFloat64:
            return fold<double, double>(to, from, ranks, count, c.operation);
        case ncclFloat16:
            return fold<__half, float>(to, from, ranks, count, c.operation);
        case ncclBfloat16:
            return fold<__nv_bfloat16, float>(to, from, ranks, count, c.operation);
        case ncclInt32:
            return fold<int, int>(to, from, ranks, count, c.operation);
        case ncclInt64:
            return fold<long, long>(to, from, ranks, count, c.operation);
        case ncclUint8:
            return fold<unsigned char, unsigned char>(to, from, ranks, count, c.operation);
        default:
            throw emu::Fault("fake NCCL: data type not supported");
    }
}

}  // namespace

struct ncclComm {
    Slot* slots = nullptr;
    int rank = 0, ranks = 0;
    unsigned long sequence = 0;
};

namespace {

struct Collective {
    ncclComm_t comm;
    Call call;
    const void* from;
    void* to;
    unsigned long number;
    bool posted = false;

    std::size_t unit() const { return call.count * size_of(call.type); }
    std::size_t from_bytes() const { return call.kind == Kind::reduce_scatter ? unit() * static_cast<std::size_t>(comm->ranks) : unit(); }
    std::size_t to_bytes() const { return call.kind == Kind::all_gather ? unit() * static_cast<std::size_t>(comm->ranks) : unit(); }

    bool step() {
        Slot& mine = comm->slots[comm->rank];
        if (!posted) {
            if (mine.posted.load() != number - 1) return false;  // an earlier collective of this communicator waits on another stream
            for (int r = 0; r < comm->ranks; ++r)
                if (comm->slots[r].done.load() < number - 1) return false;  // a peer still reads the previous one
            if (from_bytes() > kSlotBytes) throw emu::Fault("fake NCCL: collective too large");
            if (call.kind != Kind::broadcast || comm->rank == call.root) std::memcpy(mine.data, from, from_bytes());
            mine.call = call;
            mine.posted.store(number);
            posted = true;
        }
        std::vector<const char*> data;
        for (int r = 0; r < comm->ranks; ++r) {
            if (comm->slots[r].posted.load() < number) return false;
            data.push_back(comm->slots[r].data);
        }
        for (int r = 0; r < comm->ranks; ++r) {
            if (!(comm->slots[r].call == call)) {
                throw emu::Fault("collective " + std::to_string(number) + ": rank " + std::to_string(comm->rank) + " is in " +
                                 kNames[int(call.kind)] + " of " + std::to_string(call.count) + ", rank " + std::to_string(r) + " in " +
                                 kNames[int(comm->slots[r].call.kind)] + " of " + std::to_string(comm->slots[r].call.count));
            }
        }
        switch (call.kind) {
            case Kind::all_gather:
                for (int r = 0; r < comm->ranks; ++r)
                    std::memcpy(static_cast<char*>(to) + unit() * static_cast<std::size_t>(r), data[r], unit());
                break;
            case Kind::broadcast:
                std::memcpy(to, data[call.root], unit());
                break;
            case Kind::reduce_scatter:
                for (const char*& d : data) d += unit() * static_cast<std::size_t>(comm->rank);
                [[fallthrough]];
            case Kind::all_reduce:
                reduce(to, data.data(), comm->ranks, call, call.count);
        }
        mine.done.store(number);
        return true;
    }
};

thread_local int group_depth = 0;
thread_local std::vector<std::pair<cudaStream_t, std::shared_ptr<Collective>>> group;

void submit(cudaStream_t stream, const std::vector<std::shared_ptr<Collective>>& all) {
    std::vector<emu::Range> ranges;
    for (const auto& c : all) {
        if (c->call.kind != Kind::broadcast || c->comm->rank == c->call.root) ranges.push_back({c->from, c->from_bytes(), false});
        ranges.push_back({c->to, c->to_bytes(), true});
        std::erase_if(ranges, [](const emu::Range& r) { return r.bytes == 0; });
    }
    auto next = std::make_shared<std::size_t>(0);
    emu::enqueue(stream, kNames[int(all.front()->call.kind)], ranges, [all, next] {
        while (*next < all.size() && all[*next]->step()) ++*next;
        return *next == all.size();
    });
}

ncclResult_t collective(Call call, const void* from, void* to, ncclComm_t comm, cudaStream_t stream) {
    auto c = std::make_shared<Collective>(Collective{comm, call, from, to, ++comm->sequence});
    if (group_depth > 0) return group.emplace_back(stream, c), ncclSuccess;
    submit(stream, {c});
    return ncclSuccess;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    static std::atomic<int> count{0};
    std::snprintf(id->internal, sizeof id->internal, "/sherd-fake-nccl-%d-%d", getpid(), count++);
    return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
    const std::size_t bytes = sizeof(Slot) * static_cast<std::size_t>(ranks);
    const int file = shm_open(id.internal, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) return ncclSystemError;
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (p == MAP_FAILED) return ncclSystemError;
    *comm = new ncclComm{static_cast<Slot*>(p), rank, ranks, 0};
    (*comm)->slots[rank].joined.store(1);
    for (int r = 0; r < ranks; ++r)
        while ((*comm)->slots[r].joined.load() == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
    shm_unlink(id.internal);  // all have it open; who comes second finds it gone
    return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    munmap(comm->slots, sizeof(Slot) * static_cast<std::size_t>(comm->ranks));
    delete comm;
    return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    return ncclCommDestroy(comm);
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* e) {
    return *e = ncclSuccess;
}
ncclResult_t ncclCommCount(ncclComm_t comm, int* n) {
    return *n = comm->ranks, ncclSuccess;
}
ncclResult_t ncclCommUserRank(ncclComm_t comm, int* n) {
    return *n = comm->rank, ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t e) {
    return e == ncclSuccess ? "no error" : "fake NCCL error";
}

ncclResult_t ncclGroupStart() {
    return ++group_depth, ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
    if (--group_depth > 0) return ncclSuccess;
    while (!group.empty()) {
        const cudaStream_t stream = group.front().first;
        std::vector<std::shared_ptr<Collective>> same;
        std::erase_if(group, [&](auto& g) { return g.first == stream && (same.push_back(g.second), true); });
        submit(stream, same);
    }
    return ncclSuccess;
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t n, ncclDataType_t t, ncclComm_t c, cudaStream_t s) {
    return collective({Kind::all_gather, n, t, ncclSum, 0}, from, to, c, s);
}
ncclResult_t ncclReduceScatter(const void* from, void* to, size_t n, ncclDataType_t t, ncclRedOp_t op, ncclComm_t c, cudaStream_t s) {
    return collective({Kind::reduce_scatter, n, t, op, 0}, from, to, c, s);
}
ncclResult_t ncclAllReduce(const void* from, void* to, size_t n, ncclDataType_t t, ncclRedOp_t op, ncclComm_t c, cudaStream_t s) {
    return collective({Kind::all_reduce, n, t, op, 0}, from, to, c, s);
}
ncclResult_t ncclBroadcast(const void* from, void* to, size_t n, ncclDataType_t t, int root, ncclComm_t c, cudaStream_t s) {
    return collective({Kind::broadcast, n, t, ncclSum, root}, from, to, c, s);
}
}
