// What a decoder keeps and where: one layout, run once to measure and once to place.
#include "model/decoder_internal.hpp"

#include "sherd/model/decoder.hpp"

#include <algorithm>
#include <cmath>

namespace sherd {

std::int64_t logits_chunk_rows(std::int64_t vocabulary, const Backend& backend) noexcept {
    // 16 Mi logits: large enough that re-reading the head's gradient once a chunk stays below the chunk's GEMMs, small enough to forget. A
    // GPU multiplies faster for its bandwidth: its products have 2 FLOPs a row for 8 bytes of that gradient, so that an H200, with 206 for
    // a byte, wants 1,024 rows
    const std::int64_t logits = std::int64_t{backend.host_reads_memory() ? 16 : 192} << 20;
    const std::int64_t rows = logits / vocabulary / 16 * 16;
    return std::clamp<std::int64_t>(rows, 128, 1024);
}

Decoder::Buffers Decoder::lay_out(Arena& activations, Arena& workspace, const ModelConfig& c, const Backend& backend, DType compute,
                                  const DecoderLimits& limits) {
    const auto rows = static_cast<std::uint64_t>(limits.rows);
    const std::uint64_t element = size_of(compute);
    const auto wide = [&](Arena& arena, std::int64_t columns, const char* name) {
        return arena.take(rows * static_cast<std::uint64_t>(columns) * element, name);
    };
    const auto floats = [](Arena& arena, std::uint64_t n, const char* name) { return arena.take<float>(n * sizeof(float), name); };
    const auto layer = [&] {
        Layer l{};
        l.input = wide(activations, c.hidden, "block input");
        l.query = wide(activations, c.query_width(), "query");
        l.key = wide(activations, c.kv_width(), "key");
        l.value = wide(activations, c.kv_width(), "value");
        l.attention = wide(activations, c.query_width(), "attention");
        l.middle = wide(activations, c.hidden, "after attention");
        l.gate = wide(activations, c.intermediate, "gate");
        l.up = wide(activations, c.intermediate, "up");
        if (c.head_norm) {
            l.raw_query = wide(activations, c.query_width(), "query before its norm");
            l.raw_key = wide(activations, c.kv_width(), "key before its norm");
            l.query_rstd = floats(activations, rows * static_cast<std::uint64_t>(c.heads), "query norm");
            l.key_rstd = floats(activations, rows * static_cast<std::uint64_t>(c.kv_heads), "key norm");
        }
        l.rstd1 = floats(activations, rows, "norm 1");
        l.rstd2 = floats(activations, rows, "norm 2");
        l.lse = floats(activations, rows * static_cast<std::uint64_t>(c.heads), "attention log-sum");
        return l;
    };
    Buffers b{};
    if (limits.training) {
        for (std::int64_t i = 0; i < c.layers; ++i) b.layers.push_back(layer());
    } else {
        b.layers.assign(static_cast<std::size_t>(c.layers), layer());  // without a backward pass all blocks share one set
    }
    b.final_sum = wide(activations, c.hidden, "final sum");
    b.final_rstd = floats(activations, rows, "final norm");

    const auto chunk = static_cast<std::uint64_t>(std::min(limits.rows, logits_chunk_rows(c.vocabulary, backend)));
    const auto vocabulary = static_cast<std::uint64_t>(c.vocabulary);
    b.normed = wide(workspace, c.hidden, "normed");
    b.delta = wide(workspace, c.hidden, "delta");
    b.wide = wide(workspace, std::max(c.intermediate, c.query_width()), "wide");
    b.logits = floats(workspace, chunk * vocabulary, "logits of a chunk");
    b.losses = floats(workspace, rows, "token losses");
    b.cosine = floats(workspace, static_cast<std::uint64_t>(limits.positions * c.head_dim / 2), "cosine");
    b.sine = floats(workspace, static_cast<std::uint64_t>(limits.positions * c.head_dim / 2), "sine");
    if (!limits.training) return b;
    b.residual_gradient = wide(workspace, c.hidden, "residual gradient");
    b.d_normed = wide(workspace, c.hidden, "gradient of normed");
    b.d_query = wide(workspace, c.query_width(), "gradient of query");
    b.d_key = wide(workspace, c.kv_width(), "gradient of key");
    b.d_value = wide(workspace, c.kv_width(), "gradient of value");
    if (c.head_norm) b.d_raw_key = wide(workspace, c.kv_width(), "gradient of key before its norm");
    b.logits_gradient =
        compute == DType::f32 ? static_cast<void*>(b.logits) : workspace.take(chunk * vocabulary * element, "logits gradient");
    std::int64_t scratch = std::max(backend.rms_norm_scratch(limits.rows, c.hidden),
                                    c.head_norm ? backend.rms_norm_scratch(limits.rows * c.heads, c.head_dim) : 0);
    for (int i = 0; i < static_cast<int>(c.layers); ++i)
        scratch =
            std::max(scratch, limits.own_attention ? backend.own_attention_scratch(limits.rows, shape_of(c, i))
                                                   : backend.attention_scratch(limits.rows, limits.positions, shape_of(c, i), compute));
    b.scratch = floats(workspace, static_cast<std::uint64_t>(scratch), "scratch");
    b.scratch_floats = scratch;
    return b;
}

DecoderMemory Decoder::memory(const ModelConfig& config, const Backend& backend, DType compute, const DecoderLimits& limits) {
    Arena activations, workspace;
    (void)lay_out(activations, workspace, config, backend, compute, limits);
    return {activations.bytes(), workspace.bytes()};
}

Decoder::Decoder(const ModelConfig& config, Backend& backend, Stream& stream, UnitStore& store, DType compute, const DecoderLimits& limits)
    : config_(config),
      backend_(backend),
      stream_(stream),
      store_(store),
      compute_(compute),
      limits_{bucket_rows(limits.rows), std::max<std::int64_t>(1, limits.positions), limits.training},
      at_(config) {
    const DecoderMemory bytes = memory(config_, backend_, compute_, limits_);
    activation_memory_ = DeviceMemory(backend_, bytes.activations, "activations");
    workspace_memory_ = DeviceMemory(backend_, bytes.workspace, "workspace");
    Arena activations(activation_memory_.data()), workspace(workspace_memory_.data());
    buffers_ = lay_out(activations, workspace, config_, backend_, compute_, limits_);
    make_rotary_tables();
}

/// Angles in double: in fp32 the product of position and frequency loses the low bits that long documents need.
void Decoder::make_rotary_tables() {
    const std::vector<double> frequencies = rotary_frequencies(config_.rope, config_.head_dim);
    std::vector<float> cosine, sine;
    for (std::int64_t p = 0; p < limits_.positions; ++p)
        for (const double frequency : frequencies) {
            const double angle = static_cast<double>(p) * frequency;
            cosine.push_back(static_cast<float>(std::cos(angle) * config_.rope.attention_factor));
            sine.push_back(static_cast<float>(std::sin(angle) * config_.rope.attention_factor));
        }
    backend_.copy_to_device(stream_, buffers_.cosine, cosine.data(), cosine.size() * sizeof(float));
    backend_.copy_to_device(stream_, buffers_.sine, sine.data(), sine.size() * sizeof(float));
    backend_.synchronize(stream_);
}

}  // namespace sherd
