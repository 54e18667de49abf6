/// Decoders on several ranks against float64 PyTorch: logits, token losses, gradients and three AdamW steps of tests/fixtures.
#include "train/batch.hpp"
#include "world.hpp"

#include "sherd/io/files.hpp"
#include "sherd/io/json.hpp"
#include "sherd/io/safetensors.hpp"
#include "sherd/model/decoder.hpp"
#include "sherd/optim/schedule.hpp"
#include "sherd/sharding/training_state.hpp"
#include "sherd/train/inputs.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

namespace sherd::tests {
namespace {

using Floats = std::vector<float>;

/// What PyTorch computed; tests/fixtures/make.py documents the tensors.
class Reference {
  public:
    explicit Reference(const std::string& fixture)
        : folder_("tests/fixtures/" + fixture + "/"),
          file_(folder_ + "reference.safetensors"),
          json_(io::parse_json(io::read_text(folder_ + "reference.json"), "reference.json")) {}

    std::string model() const { return folder_ + "hf"; }

    template <class T = float>
    std::vector<T> read(const std::string& name) const {
        const TensorInfo* tensor = file_.find(name);
        if (tensor == nullptr) throw InputError("the fixture has no tensor '{}'", name);
        std::vector<T> values(static_cast<std::size_t>(tensor->elements()));
        file_.read(*tensor, 0, tensor->elements(), values.data());
        return values;
    }
    double number(const char* key) const { return json_.at(key).get<double>(); }
    double number(const char* key, std::size_t i) const { return json_.at(key).at(i).get<double>(); }

    std::vector<Document> documents() const {
        const auto tokens = read<std::int32_t>("tokens");
        const auto offsets = read<std::int64_t>("doc_offsets");
        const auto mask = read<std::uint8_t>("loss_mask");
        std::vector<Document> all;
        for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
            const auto begin = static_cast<std::ptrdiff_t>(offsets[i]), end = static_cast<std::ptrdiff_t>(offsets[i + 1]);
            all.push_back(
                {static_cast<std::int64_t>(i), {tokens.begin() + begin, tokens.begin() + end}, {mask.begin() + begin, mask.begin() + end}});
        }
        return all;
    }
    OptimizerSettings optimizer() const {
        OptimizerSettings o;
        o.learning_rate = number("learning_rate");
        o.schedule = Schedule::constant;
        o.beta1 = number("betas", 0);
        o.beta2 = number("betas", 1);
        o.epsilon = number("eps");
        o.weight_decay = number("weight_decay");
        o.clip_norm = number("clip_norm");
        return o;
    }

  private:
    std::string folder_;
    io::SafetensorsFile file_;
    nlohmann::json json_;
};

enum class Batches { whole, one_document_each };

struct Case {
    std::string fixture, strategy;
    std::int64_t node_size;  ///< 0: all ranks are one node
    Batches batches;
};

/// Everything of one rank: model, device, state, and its part of the fixture's documents.
class Rank {
  public:
    Rank(const Case& tested, StreamOrder order)
        : reference_(tested.fixture),
          backend_(make_cpu_backend(1, order)),
          world_(session().world(*backend_)),
          compute_(backend_->make_stream("compute")),
          communication_(backend_->make_stream("communication")),
          copies_(backend_->make_stream("copy")) {
        model_.weights = open_weights(reference_.model());
        model_.config = parse_model_config(model_.weights->config(), "config.json");
        model_.layout = std::make_unique<FlatLayout>(parameter_units(model_.config));
        deal_out(tested.batches);
        std::int64_t rows = 1, longest = 1;
        for (const HostBatch& b : batches_) {
            rows = std::max(rows, b.tokens);
            longest = std::max(longest, b.longest);
        }
        const ShardPlan plan = plan_named(tested.strategy);
        const std::int64_t node_size = tested.node_size > 0 ? tested.node_size : world_->size();
        const ShardGroups groups = make_groups(std::vector<int>(static_cast<std::size_t>(world_->size()), 0), node_size, {}, plan);
        state_ = std::make_unique<TrainingState>(*model_.layout, *backend_, *world_, *compute_, *communication_, DType::f32,
                                                 TrainingState::Purpose::training, plan, groups);
        buffers_ = std::make_unique<BatchBuffers>(*backend_, *compute_, *copies_, rows);
        decoder_ = std::make_unique<Decoder>(model_.config, *backend_, *compute_, *state_, DType::f32, DecoderLimits{rows, longest, true});
        sums_ = DeviceMemory(*backend_, sizeof(double) * static_cast<std::size_t>(1 + model_.layout->unit_count()), "sums");
        load_weights(model_, *state_);
    }

    struct StepResult {
        double loss, norm;
    };

    /// One optimizer step over the documents of all ranks, in the order of calls that training uses.
    StepResult step(const OptimizerSettings& optimizer, std::int64_t t) {
        const auto units = static_cast<std::size_t>(model_.layout->unit_count());
        backend_->zero(*compute_, sums_.data(), sums_.bytes());
        state_->begin_step();
        for (std::size_t m = 0; m < batches_.size(); ++m) {
            state_->begin_micro_step(m + 1 == batches_.size());
            decoder_->train(buffers_->upload(batches_[m]), static_cast<float>(1.0 / targets_), sums_.as<double>());
        }
        state_->finish_gradients();
        state_->sum_squares(sums_.as<double>() + 1);
        std::vector<double> sums(1 + units);
        backend_->copy_to_host(*compute_, sums.data(), sums_.data(), sums_.bytes());
        backend_->synchronize(*compute_);
        all_reduce_sum(*world_, sums);
        const double norm = std::sqrt(std::accumulate(sums.begin() + 1, sums.end(), 0.0));
        state_->update(adamw_step(optimizer, optimizer.learning_rate, clip_factor(optimizer, norm), t));
        backend_->synchronize(*compute_);
        return {sums[0] / targets_, norm};
    }

    /// By document of this rank: [tokens, vocabulary] logits, and losses by token, each at the token that is predicted.
    void forward(std::size_t batch, Floats& logits, Floats& losses) {
        const HostBatch& host = batches_[batch];
        logits.resize(static_cast<std::size_t>(host.rows() * model_.config.vocabulary));
        losses.resize(static_cast<std::size_t>(host.rows()));
        DeviceMemory out(*backend_, std::max<std::size_t>(1, logits.size()) * sizeof(float), "logits");
        const DeviceBatch device = buffers_->upload(host);
        decoder_->logits(device, out.as<float>());
        backend_->copy_to_host(*compute_, logits.data(), out.data(), logits.size() * sizeof(float));
        decoder_->evaluate(device, sums_.as<double>());
        backend_->copy_to_host(*compute_, losses.data(), decoder_->token_losses(), losses.size() * sizeof(float));
        backend_->synchronize(*compute_);
    }

    const Inputs& model() const { return model_; }
    TrainingState& state() { return *state_; }
    const std::vector<HostBatch>& batches() const { return batches_; }
    const std::vector<std::vector<std::size_t>>& documents() const { return documents_; }

    /// The whole of a state or gradient, put together from its owners; collective.
    Floats values(StateKind kind, ParameterPlace place) {
        return whole(place, [&](std::int64_t begin, std::int64_t count, float* out) { state_->read(kind, place, begin, count, out); });
    }
    Floats gradient(ParameterPlace place) {
        return whole(place, [&](std::int64_t begin, std::int64_t count, float* out) { state_->read_gradient(place, begin, count, out); });
    }

  private:
    template <class Read>
    Floats whole(ParameterPlace place, Read read) {
        const FlatParameter& p = model_.layout->at(place);
        const Interval mine = intersect(p.interval(), state_->owned(place.unit));
        Floats part(static_cast<std::size_t>(mine.size()));
        if (!mine.empty()) read(mine.begin - p.begin, mine.size(), part.data());
        const std::int64_t begin = mine.begin - p.begin;
        std::string bytes(reinterpret_cast<const char*>(&begin), sizeof begin);
        bytes.append(reinterpret_cast<const char*>(part.data()), part.size() * sizeof(float));
        Floats all(static_cast<std::size_t>(p.elements), NAN);
        for (const std::string& piece : world_->exchange(bytes)) {
            std::int64_t at = 0;
            std::memcpy(&at, piece.data(), sizeof at);
            if (piece.size() > sizeof at) std::memcpy(all.data() + at, piece.data() + sizeof at, piece.size() - sizeof at);
        }
        return all;
    }

    /// Documents in turn to the ranks; equally many micro-batches everywhere, surplus ones empty.
    void deal_out(Batches batches) {
        const std::vector<Document> all = reference_.documents();
        const auto rank = static_cast<std::size_t>(world_->rank()), ranks = static_cast<std::size_t>(world_->size());
        std::vector<std::size_t> mine;
        for (std::size_t i = 0; i < all.size(); ++i) {
            targets_ += static_cast<double>(all[i].targets());
            if (i % ranks == rank) mine.push_back(i);
        }
        if (batches == Batches::whole) {
            documents_ = {mine};
        } else {
            for (const std::size_t i : mine) documents_.push_back({i});
            documents_.resize((all.size() + ranks - 1) / ranks);
        }
        for (const auto& list : documents_) {
            std::vector<Document> packed;
            for (const std::size_t i : list) packed.push_back(all[i]);
            batches_.push_back(pack(packed));
        }
    }

    // destroyed from the last to the first: what runs on a stream before the stream, everything before the backend
    Reference reference_;
    Inputs model_;
    std::unique_ptr<Backend> backend_;
    std::unique_ptr<Communicator> world_;
    std::unique_ptr<Stream> compute_, communication_, copies_;
    std::unique_ptr<TrainingState> state_;
    std::unique_ptr<BatchBuffers> buffers_;
    std::unique_ptr<Decoder> decoder_;
    DeviceMemory sums_;
    std::vector<std::vector<std::size_t>> documents_;  ///< by micro-batch: indices in the fixture
    std::vector<HostBatch> batches_;
    double targets_ = 0;  ///< of all ranks
};

float largest(const Floats& values) {
    float most = 0;
    for (const float x : values) most = std::max(most, std::abs(x));
    return most;
}

/// Infinity where the sizes differ or a value is NaN.
double largest_difference(const float* found, const float* expected, std::size_t n) {
    double most = 0;
    for (std::size_t i = 0; i < n; ++i) {
        const double difference = std::abs(static_cast<double>(found[i]) - static_cast<double>(expected[i]));
        most = std::isnan(difference) ? HUGE_VAL : std::max(most, difference);
    }
    return most;
}
double largest_difference(const Floats& found, const Floats& expected) {
    return found.size() == expected.size() ? largest_difference(found.data(), expected.data(), found.size()) : HUGE_VAL;
}

class Fixtures : public ::testing::TestWithParam<Case> {
  protected:
    const Reference reference_{GetParam().fixture};
};

TEST_P(Fixtures, logits_and_token_losses) {
    Rank rank(GetParam(), StreamOrder::as_enqueued);
    const Floats logits = reference_.read("logits"), losses = reference_.read("token_loss");
    const auto offsets = reference_.read<std::int64_t>("doc_offsets");
    const auto vocabulary = static_cast<std::size_t>(rank.model().config.vocabulary);
    for (std::size_t b = 0; b < rank.batches().size(); ++b) {
        Floats found_logits, found_losses;
        rank.forward(b, found_logits, found_losses);
        std::size_t row = 0;
        for (const std::size_t document : rank.documents()[b]) {
            const auto first = static_cast<std::size_t>(offsets[document]);
            const auto tokens = static_cast<std::size_t>(offsets[document + 1]) - first;
            EXPECT_LT(largest_difference(&found_logits[row * vocabulary], &logits[first * vocabulary], tokens * vocabulary),
                      5e-5 * largest(logits))
                << "document " << document;
            // the loss of token i + 1 stands at row i, and the last row predicts nothing
            EXPECT_LT(largest_difference(&found_losses[row], &losses[first + 1], tokens - 1), 5e-5 * largest(losses))
                << "document " << document;
            EXPECT_EQ(found_losses[row + tokens - 1], 0.0f);
            row += tokens;
        }
    }
}

TEST_P(Fixtures, gradients) {
    Rank rank(GetParam(), StreamOrder::as_enqueued);
    rank.step(reference_.optimizer(), 1);
    for (const ParameterPlace place : rank.model().layout->places()) {
        const std::string& name = rank.model().layout->at(place).spec.name;
        const Floats expected = reference_.read("grad/" + name);
        EXPECT_LT(largest_difference(rank.gradient(place), expected), 5e-5 * largest(expected)) << name;
    }
}

TEST_P(Fixtures, three_steps_of_adamw) {
    Rank rank(GetParam(), StreamOrder::as_enqueued);
    for (std::size_t s = 0; s < 3; ++s) {
        const auto [loss, norm] = rank.step(reference_.optimizer(), static_cast<std::int64_t>(s + 1));
        EXPECT_NEAR(loss, reference_.number("loss", s), 3e-6 * reference_.number("loss", s)) << "step " << s + 1;
        EXPECT_NEAR(norm, reference_.number("grad_norm", s), 2e-5 * reference_.number("grad_norm", s)) << "step " << s + 1;
        if (s == 1) continue;
        for (const ParameterPlace place : rank.model().layout->places()) {
            const std::string& name = rank.model().layout->at(place).spec.name;
            const Floats expected = reference_.read(fmt::format("step{}/{}", s + 1, name));
            EXPECT_LT(largest_difference(rank.values(StateKind::master, place), expected), 2e-5) << name << " after step " << s + 1;
        }
    }
}

// Operations that only happen to run in the right order do so no longer when each of them is late by a time of its own.
TEST_P(Fixtures, late_streams_change_no_bit) {
    Rank prompt(GetParam(), StreamOrder::as_enqueued), late(GetParam(), StreamOrder::delayed);
    for (std::int64_t t = 1; t <= 3; ++t) {
        const auto a = prompt.step(reference_.optimizer(), t), b = late.step(reference_.optimizer(), t);
        EXPECT_EQ(a.loss, b.loss);
        EXPECT_EQ(a.norm, b.norm);
    }
    for (const ParameterPlace place : prompt.model().layout->places())
        for (const StateKind kind : {StateKind::master, StateKind::exp_avg, StateKind::exp_avg_sq}) {
            const Floats a = prompt.values(kind, place), b = late.values(kind, place);
            ASSERT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << prompt.model().layout->at(place).spec.name;
        }
}

std::vector<Case> cases() {
    std::vector<Case> all;
    // each shows something that the five below do not: cases.json tells what
    for (const char* fixture : {"llama_biases", "llama_linear_old", "llama_yarn", "llama_fp16", "llama_mixed_old", "mistral_head_dim",
                                "qwen2_windows", "qwen3_layer_types"}) {
        all.push_back({fixture, "no_shard", 0, Batches::whole});
        all.push_back({fixture, "full_shard", 0, Batches::one_document_each});
    }
    for (const char* fixture : {"llama2", "llama3_scaled", "mistral_sliding", "qwen2", "qwen3"})
        for (const auto& [strategy, node_size] :
             {std::pair<const char*, std::int64_t>{"no_shard", 0}, {"full_shard", 0}, {"hierarchical_shard", 2}})
            for (const Batches batches : {Batches::whole, Batches::one_document_each})
                all.push_back({fixture, strategy, node_size, batches});
    return all;
}

INSTANTIATE_TEST_SUITE_P(Models, Fixtures, ::testing::ValuesIn(cases()), [](const auto& tested) {
    return fmt::format("{}_{}_{}", tested.param.fixture, tested.param.strategy,
                       tested.param.batches == Batches::whole ? "whole" : "one_document_each");
});

}  // namespace
}  // namespace sherd::tests
