/// Micro-batches on their way to a device: two buffers, of which one is filled while the other computes.
#include "train/batch.hpp"

#include "sherd/backend/backend.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace sherd {
namespace {

constexpr std::int64_t batches = 6, length = 20;

HostBatch batch_of(std::int32_t number) {
    return pack({{0, std::vector<std::int32_t>(length, number), std::vector<std::uint8_t>(length, 1)}});
}

void dawdle() {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
}

enum class Slow { compute, copies };

/// The ids that compute finds, by batch, where one of the streams is late. Without `copies` there is one stream for both.
std::vector<std::int32_t> ids_found(bool with_copies, Slow slow) {
    std::vector<HostBatch> host;
    std::vector<std::int32_t> found(batches);
    const auto backend = make_cpu_backend(1);
    const auto compute = backend->make_stream("compute");
    const auto other = with_copies ? backend->make_stream("copy") : nullptr;
    Stream& copies = with_copies ? *other : *compute;
    BatchBuffers buffers(*backend, *compute, copies, length);
    for (std::int32_t i = 0; i < batches; ++i) host.push_back(batch_of(i + 1));
    for (std::size_t i = 0; i < batches; ++i) {
        if (slow == Slow::copies) backend->host_task(copies, dawdle);
        const DeviceBatch batch = buffers.upload(host[i]);
        EXPECT_EQ(batch.rows, bucket_rows(length));
        if (slow == Slow::compute) backend->host_task(*compute, dawdle);
        backend->copy_to_host(*compute, &found[i], batch.ids + length - 1, sizeof(std::int32_t));
    }
    backend->synchronize(copies);
    backend->synchronize(*compute);
    return found;
}

TEST(BatchBuffers, ComputeFindsItsOwnBatchHoweverLateAStreamIs) {
    for (const bool with_copies : {false, true})
        for (const Slow slow : {Slow::compute, Slow::copies})
            EXPECT_EQ(ids_found(with_copies, slow), (std::vector<std::int32_t>{1, 2, 3, 4, 5, 6})) << with_copies;
}

TEST(BatchBuffers, CopyUpWhileTheBatchBeforeComputes) {
    const auto backend = make_cpu_backend(1);
    const auto compute = backend->make_stream("compute"), copies = backend->make_stream("copy");
    BatchBuffers buffers(*backend, *compute, *copies, length);
    const HostBatch first = batch_of(1), second = batch_of(2);
    std::atomic<bool> go{false};
    (void)buffers.upload(first);
    backend->host_task(*compute, [&] {
        while (!go) std::this_thread::yield();
    });
    const DeviceBatch batch = buffers.upload(second);
    backend->synchronize(*copies);  // though compute is not done with the first
    EXPECT_EQ(batch.ids[0], 2);
    go = true;
    backend->synchronize(*compute);
}

TEST(BatchBuffers, ABatchWithoutRowsCopiesNothing) {
    const auto backend = make_cpu_backend(1);
    const auto compute = backend->make_stream("compute");
    BatchBuffers buffers(*backend, *compute, *compute, length);
    EXPECT_EQ(buffers.upload(pack({})).rows, 0);
}

}  // namespace
}  // namespace sherd
