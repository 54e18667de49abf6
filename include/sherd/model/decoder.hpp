#pragma once
/// The decoder's forward and backward pass over micro-batches: streams of tokens with document boundaries.
#include "sherd/backend/arena.hpp"
#include "sherd/backend/backend.hpp"
#include "sherd/model/config.hpp"
#include "sherd/model/parameters.hpp"
#include "sherd/model/unit_store.hpp"

#include <cstdint>
#include <vector>

namespace sherd {

/// A micro-batch in device memory. Without rows (a rank with nothing left) every pass still walks through the units.
///
/// Surplus rows go through all products and pointwise operations like any token, since rows of a product are computed at once: their
/// activations are finite numbers that nobody reads. Embedding, attention and loss know documents and targets and put zeros there, so that
/// losses and every gradient of a surplus row are zero, and it adds nothing to the gradient of a weight.
struct DeviceBatch {
    const std::int32_t* ids = nullptr;        ///< [rows]; -1 in surplus rows
    const std::int32_t* targets = nullptr;    ///< [rows]: id of the next token where that is a target, else -1
    const std::int32_t* positions = nullptr;  ///< [rows]: from 0 in each document; 0 in surplus rows
    Documents documents;
    std::int64_t rows = 0;  ///< a bucket (tensor.hpp)
};

/// What a decoder is sized for.
struct DecoderLimits {
    std::int64_t rows;           ///< of the largest micro-batch
    std::int64_t positions;      ///< of the longest document: length of the rotary tables
    bool training;               ///< false leaves out what only the backward pass needs
    bool own_attention = false;  ///< scratch for attention by own kernels alone: to learn what another library's takes
};

/// Memory that a decoder takes, by class, in bytes.
struct DecoderMemory {
    std::uint64_t activations = 0;  ///< saved for the backward pass
    std::uint64_t workspace = 0;    ///< temporaries of one unit, logits of one chunk, rotary tables
};

class Decoder {
  public:
    /// All memory is allocated here. Throws DeviceError.
    Decoder(const ModelConfig& config, Backend& backend, Stream& stream, UnitStore& store, DType compute, const DecoderLimits& limits);

    /// *loss_sum (device) += the sum of the token losses; gradients of scale * that sum are added to the store's, unit by unit.
    void train(const DeviceBatch& batch, float scale, double* loss_sum);
    /// *loss_sum (device) += the sum of the token losses. Nothing else changes.
    void evaluate(const DeviceBatch& batch, double* loss_sum);
    /// Token losses of the last pass (device, [rows]): at row i the loss of predicting token i + 1, 0 where that is no target.
    const float* token_losses() const noexcept { return buffers_.losses; }
    /// Logits of every row of the batch (device, fp32 [rows, vocabulary], memory of the caller). For tests and tools.
    void logits(const DeviceBatch& batch, float* out);

    static DecoderMemory memory(const ModelConfig& config, const Backend& backend, DType compute, const DecoderLimits& limits);

  private:
    /// Saved activations of one block.
    struct Layer {
        void *input, *query, *key, *value, *attention, *middle, *gate, *up;
        void *raw_query, *raw_key;  ///< before the norm of heads, where the model has one
        float *rstd1, *lse, *rstd2, *query_rstd, *key_rstd;
    };
    struct Buffers {
        std::vector<Layer> layers;
        void* final_sum;
        float* final_rstd;
        // temporaries
        void *normed, *delta, *residual_gradient, *wide, *d_query, *d_key, *d_value, *d_raw_key, *d_normed, *logits_gradient;
        float *logits, *losses, *cosine, *sine, *scratch;
        std::int64_t scratch_floats;
    };
    static Buffers lay_out(Arena& activations, Arena& workspace, const ModelConfig& config, const Backend& backend, DType compute,
                           const DecoderLimits& limits);

    /// y = x w^T + bias, or without where there is none.
    void linear(int unit, Tensor y, Tensor x, int weight, int bias);
    /// Adds the gradients of weight and bias from dy.
    void linear_gradient(int unit, Tensor dy, Tensor x, int weight, int bias);
    /// Queries or keys: norm of each head where the model has one, then the rotary embedding.
    void rotate(int unit, Tensor raw, Tensor x, std::int64_t heads, int norm, float* rstd, const DeviceBatch& batch);
    /// The way back: dx becomes the gradient of what rotate() was given, in memory of dx or of d_raw, which is returned.
    Tensor rotate_backward(int unit, Tensor dx, Tensor d_raw, Tensor raw, std::int64_t heads, int norm, const float* rstd,
                           const DeviceBatch& batch);
    static AttentionShape shape_of(const ModelConfig& config, int layer);

    void make_rotary_tables();
    /// Walks embedding, blocks and head forward; `head_work` runs between get and release of the head's unit.
    template <class Head>
    void forward(const DeviceBatch& batch, Head head_work);
    void block_forward(int layer, const DeviceBatch& batch);
    void backward(const DeviceBatch& batch);
    void mlp_backward(int layer, const DeviceBatch& batch);
    void attention_backward(int layer, const DeviceBatch& batch);
    void head_norm(const DeviceBatch& batch);
    void head_loss(const DeviceBatch& batch, float scale, double* loss_sum, bool with_gradient);

    Tensor view(void* data, std::int64_t rows, std::int64_t columns) const noexcept { return {data, compute_, rows, columns}; }
    int block_unit(int layer) const noexcept { return layer + 1; }
    int head_unit() const noexcept { return config_.tied ? 0 : static_cast<int>(config_.layers) + 1; }
    /// Index of the norm and of the head's matrix in the head's unit (parameters.hpp).
    int norm_index() const noexcept { return config_.tied ? 1 : 0; }
    int matrix_index() const noexcept { return config_.tied ? 0 : 1; }

    ModelConfig config_;
    Backend& backend_;
    Stream& stream_;
    UnitStore& store_;
    DType compute_;
    DecoderLimits limits_;
    BlockIndex at_;
    DeviceMemory activation_memory_, workspace_memory_;
    Buffers buffers_;
};

}  // namespace sherd
