/// Learning rates, clipping and AdamW against closed forms and PyTorch's results.
#include "sherd/io/files.hpp"
#include "sherd/io/json.hpp"
#include "sherd/io/safetensors.hpp"
#include "sherd/optim/schedule.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace sherd {
namespace {

using nlohmann::json;

json read(const std::string& path) {
    return io::parse_json(io::read_text(path), path);
}

OptimizerSettings settings(Schedule schedule, double rate, std::int64_t warmup, double ratio) {
    OptimizerSettings o;
    o.schedule = schedule;
    o.learning_rate = rate;
    o.warmup_steps = warmup;
    o.min_lr_ratio = ratio;
    return o;
}

TEST(LearningRate, is_that_of_the_reference_curve) {
    const json curve = read("tests/fixtures/stories_genesis/curve.json");
    const OptimizerSettings o = settings(Schedule::cosine, 1e-3, 5, 0.1);
    ASSERT_EQ(curve.at("steps").size(), 40u);
    for (std::size_t s = 0; s < 40; ++s) {
        const double expected = curve.at("steps").at(s).at("lr").get<double>();
        EXPECT_NEAR(learning_rate(o, static_cast<std::int64_t>(s), 40), expected, 1e-15) << "step " << s;
    }
}

TEST(LearningRate, closed_forms) {
    // 4 warm-up steps of 12, m = 0.2: x runs over eighths
    const OptimizerSettings linear = settings(Schedule::linear, 2.0, 4, 0.2), cosine = settings(Schedule::cosine, 2.0, 4, 0.2);
    const OptimizerSettings constant = settings(Schedule::constant, 2.0, 4, 0.2);
    for (const auto& o : {linear, cosine, constant})
        for (std::int64_t s = 0; s < 4; ++s) EXPECT_DOUBLE_EQ(learning_rate(o, s, 12), 0.5 * static_cast<double>(s + 1));
    for (const auto& o : {linear, cosine, constant}) EXPECT_DOUBLE_EQ(learning_rate(o, 4, 12), 2.0);
    EXPECT_DOUBLE_EQ(learning_rate(linear, 8, 12), 2.0 * 0.6);
    EXPECT_DOUBLE_EQ(learning_rate(cosine, 8, 12), 2.0 * 0.6);
    EXPECT_DOUBLE_EQ(learning_rate(linear, 11, 12), 2.0 * 0.3);
    EXPECT_DOUBLE_EQ(learning_rate(cosine, 6, 12), 2.0 * (0.2 + 0.8 * (1 + std::sqrt(0.5)) / 2));  // x = 1/4
    EXPECT_DOUBLE_EQ(learning_rate(constant, 11, 12), 2.0);
    EXPECT_DOUBLE_EQ(learning_rate(linear, 12, 12), 0.4);
}

TEST(LearningRate, short_runs_divide_by_nothing) {
    EXPECT_DOUBLE_EQ(learning_rate(settings(Schedule::cosine, 1.0, 0, 0.1), 0, 1), 1.0);
    EXPECT_DOUBLE_EQ(learning_rate(settings(Schedule::cosine, 1.0, 5, 0.1), 2, 3), 0.6);  // still warming up at the end
    EXPECT_DOUBLE_EQ(learning_rate(settings(Schedule::linear, 1.0, 3, 0.1), 3, 3), 1.0);
}

TEST(Clipping, is_that_of_pytorch) {
    OptimizerSettings o;
    o.clip_norm = 1.0;
    EXPECT_DOUBLE_EQ(clip_factor(o, 4.0), 1.0 / 4.000001);
    EXPECT_DOUBLE_EQ(clip_factor(o, 0.5), 1.0);
    EXPECT_DOUBLE_EQ(clip_factor(o, 0.0), 1.0);
    EXPECT_LT(clip_factor(o, 1.0), 1.0);  // 1 / (1 + 1e-6)
    o.clip_norm = 2.5;
    EXPECT_DOUBLE_EQ(clip_factor(o, 4.0), 2.5 / 4.000001);
    o.clip_norm = 0;
    EXPECT_DOUBLE_EQ(clip_factor(o, 1e9), 1.0);
}

TEST(AdamW, constants_keep_the_digits_of_the_deck) {
    OptimizerSettings o;
    o.beta1 = 0.9;
    o.beta2 = 0.999;
    o.epsilon = 1e-8;
    o.weight_decay = 0.1;
    const AdamWStep step = adamw_step(o, 3e-4, 0.25, 2);
    EXPECT_EQ(step.learning_rate, 3e-4);
    EXPECT_EQ(step.weight_decay, 0.1);
    EXPECT_EQ(step.epsilon, 1e-8);
    EXPECT_EQ(step.gradient_scale, 0.25);
    EXPECT_NEAR(1 - step.beta2, 0.001, 1e-15);  // 1 - 0.999f is off in the fifth digit
    EXPECT_NEAR(step.bias1, 0.19, 1e-15);
    EXPECT_NEAR(step.bias2, 0.001999, 1e-15);
}

// The fixture's gradient, clipped, moves each of the model's parameters as PyTorch moved it.
TEST(AdamW, first_step_of_the_llama2_fixture) {
    const json info = read("tests/fixtures/llama2/reference.json");
    OptimizerSettings o;
    o.epsilon = info.at("eps").get<double>();
    o.weight_decay = info.at("weight_decay").get<double>();
    const double rate = info.at("learning_rate").get<double>();
    const AdamWStep decayed = adamw_step(o, rate, clip_factor(o, info.at("grad_norm").at(0).get<double>()), 1);
    const io::SafetensorsFile model("tests/fixtures/llama2/hf/model.safetensors"), reference("tests/fixtures/llama2/reference.safetensors");
    const auto backend = make_cpu_backend(1);
    const auto stream = backend->make_stream("compute");
    for (const TensorInfo& tensor : model.tensors()) {
        const std::int64_t n = tensor.elements();
        const auto count = static_cast<std::size_t>(n);
        std::vector<float> values(count), gradient(count), expected(count), exp_avg(count), exp_avg_sq(count);
        model.read(tensor, 0, n, values.data());
        reference.read(*reference.find("grad/" + tensor.name), 0, n, gradient.data());
        reference.read(*reference.find("step1/" + tensor.name), 0, n, expected.data());
        AdamWStep step = decayed;
        if (tensor.shape.size() < 2) step.weight_decay = 0;
        backend->adamw(*stream, step, values.data(), exp_avg.data(), exp_avg_sq.data(), gradient.data(), {}, n);
        backend->synchronize(*stream);
        for (std::size_t i = 0; i < count; ++i) ASSERT_NEAR(values[i], expected[i], 3e-7) << tensor.name << "[" << i << "]";
    }
}

}  // namespace
}  // namespace sherd
