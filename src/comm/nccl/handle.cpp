#include "comm/nccl/handle.hpp"

#include "comm/nccl/check.hpp"

#include "sherd/runtime/error.hpp"

#include <chrono>
#include <exception>
#include <thread>

namespace sherd::detail {

namespace {

constexpr double seconds_to_part = 60;  // for the last words of communicators that end in order

double since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Short waits are the rule: no pause at first.
void pause(double waited) {
    using namespace std::chrono_literals;
    if (waited > 1e-3) std::this_thread::sleep_for(waited > 0.1 ? 1ms : 50us);
}

}  // namespace

NcclHandle::NcclHandle(const ncclUniqueId& id, int rank, int size, double timeout_s, std::shared_ptr<NcclFamily> family)
    : family_(std::move(family)), timeout_s_(timeout_s), size_(size) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    SHERD_NCCL(ncclCommInitRankConfig(&communicator_, size, id, rank, &config));
    family_->add(communicator_);
}

bool NcclHandle::start(double seconds) {
    const std::string what = fmt::format("the start of a communicator of {} ranks", size_);
    const auto began = Clock::now();
    while (!done(what)) {
        check_deadline(made_, what);
        if (since(began) > seconds) return false;
        pause(since(began));
    }
    return true;
}

NcclHandle::~NcclHandle() {
    if (aborted()) return;
    ncclResult_t state = ncclInvalidUsage;
    if (std::uncaught_exceptions() == 0) {
        const auto start = Clock::now();
        state = ncclCommFinalize(communicator_);
        while (state == ncclInProgress && since(start) < seconds_to_part) {
            pause(since(start));
            if (ncclCommGetAsyncError(communicator_, &state) != ncclSuccess) break;
        }
    }
    if (state != ncclSuccess) {
        abort("a communicator of NCCL was left by an error");
    } else {
        family_->remove(communicator_);
        (void)ncclCommDestroy(communicator_);
    }
}

ncclComm_t NcclHandle::get() const {
    if (aborted()) throw DeviceError("a collective after its NCCL communicator was aborted");
    return communicator_;
}

void NcclHandle::abort_and_throw(const std::string& why) {
    abort(why);
    throw DeviceError(why);
}

void NcclHandle::fail(ncclResult_t code, const std::string& what) {
    const std::string words = words_of(code, communicator_);
    abort_and_throw(call_failure("NCCL", __FILE__, __LINE__, fmt::format("{}: {}; NCCL_DEBUG = INFO in [nccl] tells more", what, words)));
}

bool NcclHandle::done(const std::string& what) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(get(), &state);
    if (asked != ncclSuccess) fail(asked, what);
    if (state != ncclSuccess && state != ncclInProgress) fail(state, what);
    return state == ncclSuccess;
}

void NcclHandle::check(const std::string& what) {
    if (!aborted()) (void)done(what);
}

void NcclHandle::check_deadline(Clock::time_point start, const std::string& what) {
    const double waited = since(start);
    if (waited <= timeout_s_) return;
    abort_and_throw(
        fmt::format("NCCL: {} was not done after {:.0f} s on rank {} (host {}); are all ranks alive, and can their hosts reach one another "
                    "(NCCL_SOCKET_IFNAME in [nccl])? NCCL_DEBUG = INFO tells more, communication.timeout_s waits longer",
                    what, waited, process_rank(), host_name()));
}

void NcclHandle::settle(const std::string& what) {
    const auto start = Clock::now();
    while (!done(what)) {
        check_deadline(start, what);
        pause(since(start));
    }
}

}  // namespace sherd::detail
