#pragma once
/// A GPU as a device: own kernels (kernels.hpp), products by cuBLASLt (products.hpp), attention by cuDNN too (fused_attention.hpp), streams
/// with staging of host memory (stream.hpp).
#include "backend/cuda/device_memory.hpp"
#include "backend/cuda/fused_attention.hpp"
#include "backend/cuda/products.hpp"
#include "backend/cuda/stream.hpp"

#include "sherd/backend/backend.hpp"
#include "sherd/backend/devices.hpp"

#include <map>
#include <memory>
#include <string>

namespace sherd::cuda {

class CudaBackend final : public Backend {
  public:
    /// Throws DeviceError.
    CudaBackend(const Gpu& gpu, const CudaOptions& options);
    ~CudaBackend() override;

    /// For communicators: their collectives are looked after while the host waits for a stream.
    WaitWatchers& watchers() noexcept { return watchers_; }
    const Gpu& gpu() const noexcept { return gpu_; }
    /// Makes this GPU the current one of the calling thread.
    void use() const;

    std::string description() const override;
    bool has_native(DType compute) const override;
    bool can_compute(DType compute) const override;
    std::uint64_t peak_memory_bytes() const override;
    std::uint64_t available_memory_bytes() const override;
    std::string memory_report() const override;
    bool host_reads_memory() const noexcept override { return false; }

    void reserve(std::size_t bytes, const std::string& purpose) override;
    void* allocate(std::size_t bytes, const std::string& purpose) override;
    void release(void* data, std::size_t bytes) noexcept override;
    void* allocate_host(std::size_t bytes, const std::string& purpose) override;
    void release_host(void* data, std::size_t bytes) noexcept override;

    std::size_t stream_bytes(const std::string& name) const override;
    std::unique_ptr<Stream> make_stream(const std::string& name) override;
    std::unique_ptr<Event> make_event() override;
    void record(Event& event, Stream& stream) override;
    void wait(Stream& stream, Event& event) override;
    void synchronize(Stream& stream) override;
    void host_task(Stream& stream, std::function<void()> task) override;

    void copy_to_device(Stream& stream, void* device, const void* host, std::size_t bytes) override;
    void copy_to_host(Stream& stream, void* host, const void* device, std::size_t bytes) override;
    void copy(Stream& stream, void* to, const void* from, std::size_t bytes) override;
    void zero(Stream& stream, void* data, std::size_t bytes) override;

    void cast(Stream& stream, Tensor to, Tensor from) override;
    void add(Stream& stream, Tensor y, Tensor x, bool accumulate) override;
    void sum(Stream& stream, double* out, const float* x, std::int64_t n) override;
    void sum_squares(Stream& stream, double* out, const float* x, std::int64_t n) override;

    void linear_forward(Stream& stream, Tensor y, Tensor x, Tensor w, Tensor bias) override;
    void linear_backward_input(Stream& stream, Tensor dx, Tensor dy, Tensor w, bool accumulate) override;
    void linear_backward_weight(Stream& stream, Tensor dw, Tensor dy, Tensor x, bool accumulate) override;

    void bias_backward(Stream& stream, float* dbias, Tensor dy) override;
    void embedding_forward(Stream& stream, Tensor y, Tensor table, const std::int32_t* ids) override;
    void embedding_backward(Stream& stream, Tensor dtable, Tensor dy, const std::int32_t* ids) override;
    void rms_norm_forward(Stream& stream, Tensor y, float* rstd, Tensor sum, Tensor x, Tensor delta, Tensor w, float epsilon) override;
    void rms_norm_again(Stream& stream, Tensor y, Tensor x, const float* rstd, Tensor w) override;
    void rms_norm_backward(Stream& stream, Tensor dx, float* dw, Tensor dy, Tensor x, const float* rstd, Tensor w, float* scratch,
                           bool accumulate) override;
    std::int64_t rms_norm_scratch(std::int64_t rows, std::int64_t columns) const override;
    void rope(Stream& stream, Tensor x, std::int64_t heads, const float* cosine, const float* sine, const std::int32_t* positions,
              bool inverse) override;
    void attention_forward(Stream& stream, Tensor out, float* lse, Tensor q, Tensor k, Tensor v, const Documents& documents,
                           const AttentionShape& shape) override;
    void attention_backward(Stream& stream, Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, const float* lse, Tensor q, Tensor k,
                            Tensor v, const Documents& documents, const AttentionShape& shape, Tensor scratch) override;
    std::int64_t attention_scratch(std::int64_t rows, std::int64_t longest, const AttentionShape& shape, DType compute) const override;
    std::int64_t own_attention_scratch(std::int64_t rows, const AttentionShape& shape) const override;
    void swiglu_forward(Stream& stream, Tensor out, Tensor gate, Tensor up) override;
    void swiglu_backward(Stream& stream, Tensor gate, Tensor up, Tensor dout) override;
    void cross_entropy(Stream& stream, float* loss, Tensor gradient, Tensor logits, const std::int32_t* targets, float scale) override;
    void adamw(Stream& stream, const AdamWStep& step, float* master, float* exp_avg, float* exp_avg_sq, const float* gradient,
               Tensor weights, std::int64_t n) override;

  private:
    CudaStream& enter(Stream& stream, const char* operation) const;
    void* scratch_of(CudaStream& stream, std::uint64_t bytes) const;
    bool is_pinned(const void* host, std::size_t bytes) const noexcept;

    Gpu gpu_;
    CudaOptions options_;
    DeviceAllocator memory_;
    std::map<const unsigned char*, std::size_t> pinned_;
    WaitWatchers watchers_;
    std::unique_ptr<Products> products_;
    std::unique_ptr<FusedAttention> attention_;  ///< may be nothing
};

/// The stream of CUDA behind one of a CudaBackend.
cudaStream_t native(Stream& stream);

}  // namespace sherd::cuda
