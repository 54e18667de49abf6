/// Stand-in for libnccl: communicators, groups and calls. What moves is in fake_nccl_wire.cpp.
///
/// A nonblocking communicator answers ncclInProgress as often as it may, and what was asked for is put on the stream only when
/// ncclCommGetAsyncError has said ncclSuccess: who goes on earlier is told so. To the others its rank has come when it first asked: an
/// "asynchronous error" before that leaves them waiting.
#include "execution.hpp"
#include "fake_nccl_wire.hpp"
#include "fake_state.hpp"
#include "injection.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <nccl.h>
#include <set>
#include <strings.h>
#include <thread>
#include <unistd.h>

using emu::Fault;
namespace wire = emu::nccl;

struct ncclComm {
    std::shared_ptr<wire::Wire> wire;  // queued operations hold it too
    bool blocking = true, polled = false;
    std::vector<std::function<void()>> pending;  // asked for, not yet on a stream
    int device = 0;
};

namespace {

struct Item {
    ncclComm_t comm;
    cudaStream_t stream;
    std::string name;
    std::shared_ptr<wire::Transfer> transfer;
    std::vector<emu::Range> ranges;
};

/// Communicators that were not destroyed, of all ranks that are threads of this process.
std::mutex live_mutex;
std::set<ncclComm_t> live;

void born(ncclComm_t comm) {
    const std::lock_guard lock(live_mutex);
    live.insert(comm);
}

/// alone: not in a group. Freeing what a communicator holds waits for the whole device, and so for collectives of others that nobody ends.
void dies(ncclComm_t comm, bool alone) {
    const std::lock_guard lock(live_mutex);
    live.erase(comm);
    for (const ncclComm_t other : live)
        if (alone && other->device == comm->device && other->wire->under_way > 0 && !other->wire->aborted)
            throw Fault(
                "ncclCommAbort of one communicator while a collective of another one of the device is under way: it may never return");
}

thread_local int group_depth = 0;
thread_local std::vector<Item> group;

void enqueue(cudaStream_t stream, const std::vector<Item>& items) {
    std::vector<emu::Range> ranges;
    for (const Item& i : items) std::ranges::copy_if(i.ranges, std::back_inserter(ranges), [](const emu::Range& r) { return r.bytes > 0; });
    auto left = std::make_shared<std::vector<std::shared_ptr<wire::Transfer>>>();
    for (const Item& i : items) left->push_back(i.transfer);
    const std::string name =
        items.front().name + (items.size() > 1 ? " and " + std::to_string(items.size() - 1) + " more of its group" : "");
    emu::enqueue(stream, name, ranges, [left] {
        // all at once: what is grouped waits for nothing but its peers
        std::erase_if(*left, [](const auto& t) { return t->step(); });
        return left->empty();
    });
}

ncclResult_t submit(std::vector<Item> items) {
    bool in_progress = false;
    while (!items.empty()) {
        const cudaStream_t stream = items.front().stream;
        ncclComm_t comm = items.front().comm;
        std::vector<Item> same;
        std::erase_if(items, [&](Item& i) {
            if (i.stream != stream || i.comm != comm) return false;
            same.push_back(std::move(i));
            return true;
        });
        if (comm->blocking) {
            enqueue(stream, same);
        } else {
            comm->pending.push_back([stream, same] { enqueue(stream, same); });
            comm->polled = false;
            in_progress = true;
        }
    }
    return in_progress ? ncclInProgress : ncclSuccess;
}

void check_usable(ncclComm_t comm, const char* name) {
    if (comm == nullptr) throw Fault(std::string(name) + " on a null communicator");
    if (!comm->wire->complete()) throw Fault(std::string(name) + " on a communicator that is still being made");
    if (!comm->pending.empty()) throw Fault(std::string(name) + " before ncclCommGetAsyncError said that the previous call is done");
    if (comm->wire->aborted) throw Fault(std::string(name) + " on an aborted communicator");
}

ncclResult_t add(Item item) {
    if (group_depth > 0) return group.push_back(std::move(item)), ncclSuccess;
    return submit({std::move(item)});
}

ncclResult_t collective(wire::Call call, const void* from, void* to, ncclComm_t comm, cudaStream_t stream) {
    check_usable(comm, wire::name_of(call.kind));
    auto c = std::make_shared<wire::Collective>(comm->wire, call, from, to);
    std::vector<emu::Range> ranges;
    if (c->reads()) ranges.push_back({from, c->from_bytes(), false});
    if (c->writes()) ranges.push_back({to, c->to_bytes(), true});
    return add({comm, stream, wire::name_of(call.kind), std::move(c), std::move(ranges)});
}

/// NCCL reads its variables when a communicator is made, and makes none where it cannot read one. This one stands for them all.
bool understands_environment() {
    const char* const protocol = std::getenv("NCCL_PROTO");
    constexpr std::array known{"LL", "LL128", "Simple"};
    return protocol == nullptr || std::ranges::any_of(known, [&](const char* k) { return strcasecmp(k, protocol) == 0; });
}

ncclResult_t initialize(ncclComm_t* comm, const std::string& name, int ranks, int rank, bool blocking) {
    if (ranks < 1 || rank < 0 || rank >= ranks) return ncclInvalidArgument;
    if (!understands_environment()) return ncclInvalidUsage;
    auto made = std::make_unique<ncclComm>();
    made->wire = std::make_shared<wire::Wire>(name, rank, ranks);
    made->blocking = blocking;
    if (cudaGetDevice(&made->device) != cudaSuccess) return ncclUnhandledCudaError;
    *comm = made.release();
    born(*comm);
    if (!blocking) return ncclInProgress;
    (*comm)->wire->join();
    while (!(*comm)->wire->complete()) std::this_thread::sleep_for(std::chrono::microseconds(50));
    return ncclSuccess;
}

bool is_blocking(const ncclConfig_t* config) {
    if (config == nullptr) return true;
    if (config->magic != 0xcafebeef) throw Fault("NCCL: a configuration without NCCL_CONFIG_INITIALIZER");
    return config->blocking != 0;  // undefined: blocking
}

}  // namespace

void emu::break_communicators() {
    const std::lock_guard lock(live_mutex);
    for (const ncclComm_t comm : live) comm->wire->broken = true;
}

#define EMU_NCCL_CALL() \
    if (emu::call_fails(__func__)) return ncclSystemError

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
    EMU_NCCL_CALL();
    const char* const loaded = emu::of_own_rank("EMU_NCCL_VERSION");
    *version = loaded != nullptr ? static_cast<int>(std::strtol(loaded, nullptr, 10)) : NCCL_VERSION_CODE;
    return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    EMU_NCCL_CALL();
    static std::atomic<int> count{0};
    std::snprintf(id->internal, sizeof id->internal, "/sherd-fake-nccl-%d-%d", getpid(), count++);
    return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
    EMU_NCCL_CALL();
    return initialize(comm, id.internal, ranks, rank, true);
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
    EMU_NCCL_CALL();
    return initialize(comm, id.internal, ranks, rank, is_blocking(config));
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* out, ncclConfig_t* config) {
    EMU_NCCL_CALL();
    check_usable(comm, "ncclCommSplit");
    const auto all = comm->wire->exchange(color, key);
    std::vector<std::pair<int, int>> members;  // (key, rank)
    for (std::size_t r = 0; r < all.size(); ++r)
        if (all[r].first == color) members.emplace_back(all[r].second, static_cast<int>(r));
    std::ranges::sort(members);
    *out = nullptr;
    if (color == NCCL_SPLIT_NOCOLOR) return ncclSuccess;
    const auto mine = std::ranges::find(members, std::pair(key, comm->wire->rank));
    const std::string name = comm->wire->name + "-" + std::to_string(comm->wire->splits) + "-" + std::to_string(color);
    return initialize(out, name, static_cast<int>(members.size()), static_cast<int>(mine - members.begin()),
                      config == nullptr ? comm->blocking : is_blocking(config));
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    EMU_NCCL_CALL();
    check_usable(comm, "ncclCommFinalize");
    return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    if (comm->wire->under_way > 0 && !comm->wire->aborted) throw Fault("ncclCommDestroy while collectives are under way");
    dies(comm, false);
    delete comm;
    EMU_NCCL_CALL();
    return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    comm->wire->aborted = true;
    dies(comm, group_depth == 0);
    delete comm;
    EMU_NCCL_CALL();
    return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* e) {
    EMU_NCCL_CALL();
    if (emu::call_fails("asynchronous error")) comm->wire->broken = true;
    if (comm->wire->broken) return *e = ncclRemoteError, ncclSuccess;
    comm->wire->join();  // what a rank does to connect may fail after the call that began it, and then the others wait for it
    if (!comm->wire->complete()) return *e = ncclInProgress, ncclSuccess;
    if (!comm->pending.empty() && !std::exchange(comm->polled, true)) return *e = ncclInProgress, ncclSuccess;
    for (const auto& put : std::exchange(comm->pending, {})) put();
    *e = ncclSuccess;
    return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int* n) {
    EMU_NCCL_CALL();
    return *n = comm->wire->ranks, ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* n) {
    EMU_NCCL_CALL();
    return *n = comm->wire->rank, ncclSuccess;
}
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
    EMU_NCCL_CALL();
    return *device = comm->device, ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t e) {
    constexpr const char* texts[] = {"no error",
                                     "unhandled cuda error",
                                     "unhandled system error",
                                     "internal error",
                                     "invalid argument",
                                     "invalid usage",
                                     "remote process exited or there was a network error",
                                     "NCCL operation in progress"};
    return e >= 0 && e < static_cast<int>(std::size(texts)) ? texts[e] : "unknown result code";
}
const char* ncclGetLastError(ncclComm_t) {
    return "a failure of the stand-in";
}

ncclResult_t ncclGroupStart() {
    EMU_NCCL_CALL();
    ++group_depth;
    return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
    if (--group_depth > 0) return ncclSuccess;
    auto items = std::exchange(group, {});
    EMU_NCCL_CALL();
    return submit(std::move(items));
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t n, ncclDataType_t t, ncclComm_t c, cudaStream_t s) {
    EMU_NCCL_CALL();
    return collective({wire::Kind::all_gather, n, t, ncclSum, 0}, from, to, c, s);
}
ncclResult_t ncclReduceScatter(const void* from, void* to, size_t n, ncclDataType_t t, ncclRedOp_t op, ncclComm_t c, cudaStream_t s) {
    EMU_NCCL_CALL();
    return collective({wire::Kind::reduce_scatter, n, t, op, 0}, from, to, c, s);
}
ncclResult_t ncclAllReduce(const void* from, void* to, size_t n, ncclDataType_t t, ncclRedOp_t op, ncclComm_t c, cudaStream_t s) {
    EMU_NCCL_CALL();
    return collective({wire::Kind::all_reduce, n, t, op, 0}, from, to, c, s);
}
ncclResult_t ncclReduce(const void* from, void* to, size_t n, ncclDataType_t t, ncclRedOp_t op, int root, ncclComm_t c, cudaStream_t s) {
    EMU_NCCL_CALL();
    return collective({wire::Kind::reduce, n, t, op, root}, from, to, c, s);
}
ncclResult_t ncclBroadcast(const void* from, void* to, size_t n, ncclDataType_t t, int root, ncclComm_t c, cudaStream_t s) {
    EMU_NCCL_CALL();
    return collective({wire::Kind::broadcast, n, t, ncclSum, root}, from, to, c, s);
}
ncclResult_t ncclSend(const void* from, size_t n, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t s) {
    EMU_NCCL_CALL();
    check_usable(c, "ncclSend");
    if (peer < 0 || peer >= c->wire->ranks) return ncclInvalidArgument;
    return add({c, s, "ncclSend", std::make_shared<wire::Send>(c->wire, peer, from, n, t), {{from, n * wire::size_of(t), false}}});
}
ncclResult_t ncclRecv(void* to, size_t n, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t s) {
    EMU_NCCL_CALL();
    check_usable(c, "ncclRecv");
    if (peer < 0 || peer >= c->wire->ranks) return ncclInvalidArgument;
    return add({c, s, "ncclRecv", std::make_shared<wire::Receive>(c->wire, peer, to, n, t), {{to, n * wire::size_of(t), true}}});
}
}
