#pragma once
/// Every device operation, once. An implementation is a device: memory, streams, events, and the mathematics of a decoder.
///
/// The rules of streams hold for every implementation, the CPU too: an operation is enqueued on a stream and returns at once; operations of
/// one stream run in order, those of two streams in any order unless an event orders them; the host sees results after synchronize() only.
/// Outputs go to memory that the caller gave; nothing is allocated by an operation. All operations are deterministic: equal inputs and
/// equal threads give equal bits.
///
/// Activations and weights are of one *compute* type, fp32 or bf16, which the tensors carry; sums, statistics and gradients of parameters
/// are fp32. "rows" is the number of rows of a micro-batch, surplus rows included (tensor.hpp).
#include "sherd/backend/shapes.hpp"
#include "sherd/runtime/error.hpp"
#include "sherd/tensor/tensor.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace sherd {

/// An in-order queue of device work. Made by a Backend, destroyed before it; neither copied nor moved. Destruction waits for its work.
class Stream {
  public:
    Stream() = default;
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    virtual ~Stream() = default;
};

/// A point in a stream. Waiting on an event never recorded waits for nothing; recording again moves the point.
class Event {
  public:
    Event() = default;
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    virtual ~Event() = default;
};

class Backend;

/// A device has less memory left than was asked for. The message says for what, and who holds how much.
class OutOfMemoryError : public DeviceError {
  public:
    template <class First, class... Rest>
    explicit OutOfMemoryError(fmt::format_string<First, Rest...> format, First&& first, Rest&&... rest)
        : DeviceError(format, std::forward<First>(first), std::forward<Rest>(rest)...) {
        cause_ = Cause::out_of_memory;
    }
};

/// The same where a call of the driver or of a library says so. The message names the call; Backend::memory_report() says who holds how
/// much.
class CallOutOfMemoryError : public OutOfMemoryError {
  public:
    explicit CallOutOfMemoryError(const std::string& message) : OutOfMemoryError("{}", message) {}
};

enum class MemoryPlace { device, host };

/// Owned memory, aligned to 256 bytes.
template <MemoryPlace place>
class OwnedMemory {
  public:
    OwnedMemory() = default;
    /// Throws DeviceError.
    OwnedMemory(Backend& backend, std::size_t bytes, const std::string& purpose);
    OwnedMemory(OwnedMemory&& other) noexcept;
    OwnedMemory& operator=(OwnedMemory&& other) noexcept;
    ~OwnedMemory();
    void* data() const noexcept { return data_; }
    std::size_t bytes() const noexcept { return bytes_; }
    template <class T>
    T* as() const noexcept {
        return static_cast<T*>(data_);
    }

  private:
    Backend* backend_ = nullptr;
    void* data_ = nullptr;
    std::size_t bytes_ = 0;
};
extern template class OwnedMemory<MemoryPlace::device>;
extern template class OwnedMemory<MemoryPlace::host>;

using DeviceMemory = OwnedMemory<MemoryPlace::device>;
/// Host memory that copies to and from the device reach without staging: pinned, on a GPU.
using HostMemory = OwnedMemory<MemoryPlace::host>;

class Backend {
  public:
    virtual ~Backend() = default;

    /// "cpu: AMD EPYC 9654, 2 threads, avx512_bf16" for the banner.
    virtual std::string description() const = 0;
    /// Whether the device computes in that type in hardware.
    virtual bool has_native(DType compute) const = 0;
    /// Whether it can compute in that type at all, in hardware or not.
    virtual bool can_compute(DType compute) const = 0;
    /// Peak bytes in use as the system shows them: resident memory of the process on the CPU; on a GPU, memory of the device in use at any
    /// of the calls so far, by whoever shares it.
    virtual std::uint64_t peak_memory_bytes() const = 0;
    /// Bytes that are free on the device, whatever this process may take of them.
    virtual std::uint64_t available_memory_bytes() const = 0;
    /// "1.2 MiB of 80.0 GiB are free. This rank holds 60.0 GiB: weights 40.0 GiB, activations 20.0 GiB": as the device says now, then who
    /// holds how much, largest first. Empty where no account is kept: a CPU's memory is the system's.
    virtual std::string memory_report() const { return {}; }
    /// Whether host code may read and write device memory.
    virtual bool host_reads_memory() const noexcept = 0;

    /// Takes memory at once for all that is allocated from now on, as far as it fits; once. A CPU, whose system gives memory when it is
    /// touched, takes none. Throws as allocate().
    virtual void reserve(std::size_t bytes, const std::string& purpose) = 0;
    /// Throws DeviceError saying what the memory was for and how much is there.
    virtual void* allocate(std::size_t bytes, const std::string& purpose) = 0;
    virtual void release(void* data, std::size_t bytes) noexcept = 0;
    /// Of HostMemory. Throws DeviceError.
    virtual void* allocate_host(std::size_t bytes, const std::string& purpose) = 0;
    virtual void release_host(void* data, std::size_t bytes) noexcept = 0;

    /// Device memory that a stream allocates for itself.
    virtual std::size_t stream_bytes(const std::string& name) const = 0;
    virtual std::unique_ptr<Stream> make_stream(const std::string& name) = 0;
    virtual std::unique_ptr<Event> make_event() = 0;
    virtual void record(Event& event, Stream& stream) = 0;
    virtual void wait(Stream& stream, Event& event) = 0;
    /// Blocks the host until all work of the stream is done; rethrows the first error of its operations.
    virtual void synchronize(Stream& stream) = 0;
    /// Runs a host function in stream order (host-staged communication, file input). It must not call the Backend.
    virtual void host_task(Stream& stream, std::function<void()> task) = 0;

    /// Host memory stays valid and unchanged until done. Of HostMemory alone the bytes are taken in stream order; of other host memory at
    /// any time from the call on.
    virtual void copy_to_device(Stream& stream, void* device, const void* host, std::size_t bytes) = 0;
    virtual void copy_to_host(Stream& stream, void* host, const void* device, std::size_t bytes) = 0;
    virtual void copy(Stream& stream, void* to, const void* from, std::size_t bytes) = 0;  ///< within the device, no overlap
    virtual void zero(Stream& stream, void* data, std::size_t bytes) = 0;

    /// to = from, converted with round to nearest even; equal element counts.
    virtual void cast(Stream& stream, Tensor to, Tensor from) = 0;
    /// y = 0 + x, which is x but for a -0, or += with accumulate; fp32, bf16 or fp16 x with as many elements as y, which is fp32 or bf16
    /// and rounded to nearest even. x may be y.
    virtual void add(Stream& stream, Tensor y, Tensor x, bool accumulate) = 0;
    /// *out += sum of x[0..n), accumulated in fp64 in an order that depends on n only.
    virtual void sum(Stream& stream, double* out, const float* x, std::int64_t n) = 0;
    /// *out += sum of squares of x[0..n), likewise. A NaN or infinity in x makes it non-finite.
    virtual void sum_squares(Stream& stream, double* out, const float* x, std::int64_t n) = 0;

    /// y [rows, outputs] = x [rows, inputs] w^T + bias in every row, rounded once; w [outputs, inputs]; bias [1, outputs] in y's type, or
    /// without data: none. y may be fp32 where x and w are bf16.
    virtual void linear_forward(Stream& stream, Tensor y, Tensor x, Tensor w, Tensor bias) = 0;
    /// dx [rows, inputs] = dy [rows, outputs] w, or += with accumulate.
    virtual void linear_backward_input(Stream& stream, Tensor dx, Tensor dy, Tensor w, bool accumulate) = 0;
    /// dw [outputs, inputs] (fp32) = dy^T x, or += with accumulate.
    virtual void linear_backward_weight(Stream& stream, Tensor dw, Tensor dy, Tensor x, bool accumulate) = 0;

    /// dbias (fp32, [columns]) += the sum of dy over its rows, in an order that depends on the number of rows only.
    virtual void bias_backward(Stream& stream, float* dbias, Tensor dy) = 0;

    /// y[t] = table[ids[t]]; a zero row where ids[t] < 0. ids: device, [rows].
    virtual void embedding_forward(Stream& stream, Tensor y, Tensor table, const std::int32_t* ids) = 0;
    /// dtable[ids[t]] += dy[t] in rising t; dtable fp32.
    virtual void embedding_backward(Stream& stream, Tensor dtable, Tensor dy, const std::int32_t* ids) = 0;

    /// sum = x + delta (rounded to the compute type); rstd[t] = 1/sqrt(mean(sum[t]^2) + epsilon); y[t] = sum[t] * rstd[t] * w.
    /// delta without data: sum is x, and `sum` is not written. sum may be x.
    virtual void rms_norm_forward(Stream& stream, Tensor y, float* rstd, Tensor sum, Tensor x, Tensor delta, Tensor w, float epsilon) = 0;
    /// y[t] = x[t] * rstd[t] * w: what the forward pass computed, again.
    virtual void rms_norm_again(Stream& stream, Tensor y, Tensor x, const float* rstd, Tensor w) = 0;
    /// dx = the gradient through y = x * rstd * w, or += with accumulate; dw (fp32, [columns]) += sum over rows of dy * x * rstd.
    /// scratch: rms_norm_scratch(rows, columns) floats.
    virtual void rms_norm_backward(Stream& stream, Tensor dx, float* dw, Tensor dy, Tensor x, const float* rstd, Tensor w, float* scratch,
                                   bool accumulate) = 0;
    virtual std::int64_t rms_norm_scratch(std::int64_t rows, std::int64_t columns) const = 0;

    /// Rotates x [rows, heads * head_dim] in place by the angle of each row's position: halves (i, i + head_dim/2) turn together, as in
    /// Hugging Face's Llama. cosine, sine: fp32 [positions, head_dim/2]. inverse: by the negative angle (the backward pass).
    virtual void rope(Stream& stream, Tensor x, std::int64_t heads, const float* cosine, const float* sine, const std::int32_t* positions,
                      bool inverse) = 0;

    /// Causal attention within each document. q, out [rows, heads*head_dim]; k, v [rows, kv_heads*head_dim]; lse (fp32, [heads, rows]): log
    /// of the sum of exponentials of each row's scores. Flash attention (Dao 2022): no matrix of scores is ever whole. Surplus rows of out
    /// become zero. head_dim is even; the CPU has no other limit, CUDA ends at 256 (DeviceError).
    virtual void attention_forward(Stream& stream, Tensor out, float* lse, Tensor q, Tensor k, Tensor v, const Documents& documents,
                                   const AttentionShape& shape) = 0;
    /// dq, dk, dv (overwritten, surplus rows zero) from dout. scratch: fp32, attention_scratch() elements for these rows and documents at
    /// least; what is computed may depend on how many there are.
    virtual void attention_backward(Stream& stream, Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, const float* lse, Tensor q,
                                    Tensor k, Tensor v, const Documents& documents, const AttentionShape& shape, Tensor scratch) = 0;
    /// For up to `rows` rows in documents of up to `longest`.
    virtual std::int64_t attention_scratch(std::int64_t rows, std::int64_t longest, const AttentionShape& shape, DType compute) const = 0;
    /// What it would be if own kernels alone computed attention.
    virtual std::int64_t own_attention_scratch(std::int64_t rows, const AttentionShape& shape) const = 0;

    /// out = silu(gate) * up.
    virtual void swiglu_forward(Stream& stream, Tensor out, Tensor gate, Tensor up) = 0;
    /// In place: gate and up become their gradients, dout becomes silu(gate) * up of the forward pass (needed for the next dw).
    virtual void swiglu_backward(Stream& stream, Tensor gate, Tensor up, Tensor dout) = 0;

    /// loss[t] = -log softmax(logits[t])[targets[t]], fp32; 0 where targets[t] < 0. gradient, where it has data, becomes
    /// (softmax - onehot) * scale in the compute type, zero rows where targets[t] < 0. logits fp32 [rows, vocabulary], may be overwritten;
    /// gradient may be logits itself where it is fp32.
    virtual void cross_entropy(Stream& stream, float* loss, Tensor gradient, Tensor logits, const std::int32_t* targets, float scale) = 0;

    /// One step on n elements of fp32 masters and moments; `weights`, where it has data, receives the new masters in its type.
    virtual void adamw(Stream& stream, const AdamWStep& step, float* master, float* exp_avg, float* exp_avg_sq, const float* gradient,
                       Tensor weights, std::int64_t n) = 0;
};

/// Waits for a stream when an exception leaves its scope: for host memory that enqueued operations use. Who leaves in order has waited.
class StreamGuard {
  public:
    StreamGuard(Backend& backend, Stream& stream) : backend_(backend), stream_(stream) {}
    StreamGuard(const StreamGuard&) = delete;
    StreamGuard& operator=(const StreamGuard&) = delete;
    ~StreamGuard();

  private:
    Backend& backend_;
    Stream& stream_;
};

/// Orders a test may give the streams of a CPU backend, to show that no result depends on them.
enum class StreamOrder {
    as_enqueued,  ///< each stream has a thread of its own
    delayed,      ///< each operation first waits a pseudo-random time up to 200 us, so that missing event waits show
};

/// What a CPU backend was asked to allocate, for tests: bytes by purpose, and how often.
struct AllocationLog {
    std::map<std::string, std::uint64_t> bytes;
    int count = 0;
};

/// The CPU as a device. threads: OpenMP threads of each compute operation (at least 1). Denormals are flushed on all of them.
/// log, where given, must outlive the backend.
std::unique_ptr<Backend> make_cpu_backend(int threads, StreamOrder order = StreamOrder::as_enqueued, AllocationLog* log = nullptr);

}  // namespace sherd
