/// Positions far from the start: one document of 8,192 tokens against float64 (tests/fixtures/long_context/make.py), in fp32 and in bf16.
/// Angles in 16 bits, or products of position and frequency in too few, would let the error grow with the position.
#include "train/batch.hpp"

#include "sherd/backend/backend.hpp"
#include "sherd/io/files.hpp"
#include "sherd/model/decoder.hpp"
#include "sherd/tensor/half.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace sherd {
namespace {

constexpr std::int64_t tokens = 8192;
constexpr const char* config_text = R"({"model_type": "llama", "vocab_size": 64, "hidden_size": 64, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0, "tie_word_embeddings": false})";

/// [0, 1): SplitMix64 of stream * 2^32 + i, as in make.py.
double uniform(std::uint64_t stream, std::uint64_t i) {
    std::uint64_t z = (stream << 32) + i + 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

double scale_of(const std::string& name) {
    if (name.find("norm") != std::string::npos) return 0.1;
    if (name.find("embed") != std::string::npos) return 1.0;
    return name.find("mlp") != std::string::npos ? 0.2 : 0.3;
}

/// All weights of a model in one place, for passes without gradients.
class WholeWeights final : public UnitStore {
  public:
    WholeWeights(const ModelConfig& config, Backend& backend, Stream& stream, DType type) {
        std::uint64_t number = 0;
        for (const UnitSpec& unit : parameter_units(config)) {
            auto& weights = units_.emplace_back();
            for (const ParameterSpec& p : unit.parameters) {
                const auto n = static_cast<std::size_t>(p.elements());
                std::vector<float> values(n);
                for (std::size_t i = 0; i < n; ++i) {
                    const double centred = (2 * uniform(number, i) - 1) * scale_of(p.name);
                    values[i] = to_float(to_bfloat16(static_cast<float>(p.shape.size() == 1 ? centred + 1 : centred)));
                }
                ++number;
                auto& memory = memory_.emplace_back(std::make_unique<DeviceMemory>(backend, n * size_of(type), p.name.c_str()));
                upload(backend, stream, *memory, values, type);
                const bool matrix = p.shape.size() == 2;
                weights.push_back({memory->data(), type, matrix ? p.shape[0] : 1, matrix ? p.shape[1] : p.shape[0]});
            }
        }
    }
    void gather(int) override {}
    void get(int) override {}
    void release(int) override {}
    Tensor weight(int unit, int parameter) override {
        return units_.at(static_cast<std::size_t>(unit)).at(static_cast<std::size_t>(parameter));
    }
    Tensor gradient(int, int) override { return {}; }
    GradientTarget gradient_target(int, int) override { return {}; }
    void accumulate(int) override {}

  private:
    static void upload(Backend& backend, Stream& stream, DeviceMemory& to, const std::vector<float>& values, DType type) {
        std::vector<bfloat16> halves(values.size());
        for (std::size_t i = 0; i < values.size(); ++i) halves[i] = to_bfloat16(values[i]);
        const bool whole = type == DType::f32;
        backend.copy_to_device(stream, to.data(), whole ? static_cast<const void*>(values.data()) : halves.data(), to.bytes());
        backend.synchronize(stream);
    }
    std::vector<std::vector<Tensor>> units_;
    std::vector<std::unique_ptr<DeviceMemory>> memory_;
};

/// [i] the loss of token i, computed in `type`.
std::vector<float> losses_in(DType type) {
    const ModelConfig config = parse_model_config(config_text, "config.json");
    const auto backend = make_cpu_backend(2);
    const auto stream = backend->make_stream("compute");
    WholeWeights weights(config, *backend, *stream, type);
    Document document{0, std::vector<std::int32_t>(tokens), std::vector<std::uint8_t>(tokens, 1)};
    document.is_target[0] = 0;
    for (std::uint64_t i = 0; i < tokens; ++i) document.tokens[i] = static_cast<std::int32_t>(uniform(12, i) * 64);
    const HostBatch host = pack({document});
    BatchBuffers buffers(*backend, *stream, *stream, host.rows());
    Decoder decoder(config, *backend, *stream, weights, type, {host.rows(), tokens, false});
    DeviceMemory sum(*backend, sizeof(double), "sum");
    backend->zero(*stream, sum.data(), sum.bytes());
    decoder.evaluate(buffers.upload(host), sum.as<double>());
    std::vector<float> losses(tokens, 0.0f);  // the loss of token i + 1 stands at row i
    backend->copy_to_host(*stream, losses.data() + 1, decoder.token_losses(), (tokens - 1) * sizeof(float));
    backend->synchronize(*stream);
    return losses;
}

std::vector<float> reference() {
    const std::string bytes = io::read_text("tests/fixtures/long_context/token_loss.f32");
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
    return values;
}

/// Mean absolute difference over tokens [begin, end).
double gap(const std::vector<float>& a, const std::vector<float>& b, std::size_t begin, std::size_t end) {
    double sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    return sum / static_cast<double>(end - begin);
}

TEST(LongContext, the_error_does_not_grow_with_the_position) {
    const std::vector<float> expected = reference(), exact = losses_in(DType::f32), rounded = losses_in(DType::bf16);
    ASSERT_EQ(expected.size(), static_cast<std::size_t>(tokens));
    // angles in fp32 alone would be off by 1e-4
    for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(exact[i], expected[i], 4e-5) << "token " << i;
    const double near = gap(rounded, exact, 100, 2000), far = gap(rounded, exact, 6000, 8000);
    EXPECT_GT(near, 1e-5) << "bf16 rounds";
    EXPECT_LT(near, 0.02);
    EXPECT_LE(far, 1.1 * near) << "means of 2,000 tokens scatter by a few percent; with angles in fp16, far is 6 times near";
}

}  // namespace
}  // namespace sherd
