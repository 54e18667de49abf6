#include "sherd/app/keys.hpp"

#include "key_values.hpp"
#include "words.hpp"

#include <algorithm>

namespace sherd {

namespace {

using values::NumberRule;
constexpr OnResume may_change = OnResume::may_change, fixed = OnResume::fixed, by_content = OnResume::by_content;
const NumberRule not_negative{}, positive{.open_least = true}, fraction{.most = 1}, below_one{.most = 1, .open_most = true};

/// A name that becomes a directory of its own under checkpoints/.
KeyValue run_name() {
    auto set = [](Settings& s, const std::string& text) {
        if (text.find('/') != std::string::npos || text == "." || text == "..")
            throw BadValue("expected a name without '/'; run.directory says where the run lies");
        s.run.name = values::parse_text(text);
    };
    return {"text without '/'", set, [](const Settings& s) { return s.run.name; }};
}

KeyValue seed() {
    return {"integer from 0 to 2^64-1", [](Settings& s, const std::string& text) { s.run.seed = values::parse_unsigned(text); },
            [](const Settings& s) { return fmt::to_string(s.run.seed); }};
}

/// `none` leaves the field alone: it is what is printed where run.steps decides.
KeyValue epochs() {
    auto set = [](Settings& s, const std::string& text) {
        if (text != "none") s.run.epochs = values::parse_number(text, {.most = 1e6, .open_least = true});
    };
    return {"number above 0, or none", set,
            [](const Settings& s) { return s.run.steps >= 0 ? std::string("none") : values::print_number(s.run.epochs); }};
}

/// "4096, 4096,1024" -> its items without blanks around them.
std::vector<std::string> list_items(const std::string& text) {
    std::vector<std::string> items;
    for (std::size_t at = 0; at <= text.size();) {
        const std::size_t comma = std::min(text.find(',', at), text.size());
        std::string& item = items.emplace_back(text.substr(at, comma - at));
        item.erase(0, item.find_first_not_of(' '));
        item.erase(item.find_last_not_of(' ') + 1);
        at = comma + 1;
    }
    return items;
}

/// auto, one capacity, or one per rank: "4096,4096,1024".
KeyValue micro_tokens() {
    auto set = [](Settings& s, const std::string& text) {
        s.batch.micro_tokens.clear();
        if (text == "auto") return;
        for (const std::string& item : list_items(text)) {
            try {
                s.batch.micro_tokens.push_back(values::parse_integer(item, {.least = 1, .most = 1 << 30}));
            } catch (const BadValue&) {
                throw BadValue(fmt::format("'{}' in it is no integer from 1 to {}; expected auto, one number, or one per rank: 4096,1024",
                                           item, 1 << 30));
            }
        }
    };
    auto get = [](const Settings& s) {
        std::vector<std::string> items;
        for (const std::int64_t tokens : s.batch.micro_tokens) items.push_back(fmt::to_string(tokens));
        return items.empty() ? std::string("auto") : joined(items, ",");
    };
    return {"auto, integer, or one a rank: 4096,1024", set, get};
}

/// none, bytes, or bytes by rank: "30GiB,30GiB,12GiB".
KeyValue memory_limit() {
    auto set = [](Settings& s, const std::string& text) {
        s.device.memory_limit.clear();
        if (text == "none") return;
        for (const std::string& item : list_items(text)) s.device.memory_limit.push_back(values::parse_bytes(item));
    };
    auto get = [](const Settings& s) {
        std::vector<std::string> items;
        for (const std::uint64_t bytes : s.device.memory_limit) items.push_back(values::print_bytes(bytes));
        return items.empty() ? std::string("none") : joined(items, ",");
    };
    return {"none, bytes as 30GiB, or one a rank", set, get};
}

KeyValue checkpoint_every() {
    auto set = [](Settings& s, const std::string& text) {
        s.checkpoint.every_steps = 0;
        s.checkpoint.every_seconds = 0;
        if (const auto seconds = values::parse_duration(text)) {
            s.checkpoint.every_seconds = *seconds;
            return;
        }
        try {
            s.checkpoint.every_steps = values::parse_integer(text, {});
        } catch (const BadValue&) {
            throw BadValue("expected a number of steps, 0 for none, or a time above 0 as 90s, 30min or 2h");
        }
    };
    auto get = [](const Settings& s) {
        return s.checkpoint.every_seconds > 0 ? values::print_duration(s.checkpoint.every_seconds)
                                              : fmt::to_string(s.checkpoint.every_steps);
    };
    return {"0, steps, or a time: 90s, 30min, 2h", set, get};
}

Section run_section() {
    return {"run",
            "the run as a whole",
            {{"run", "name", "run", may_change, run_name(), "Name of the run; without it the deck's file name, else run."},
             {"run", "directory", "checkpoints/NAME", may_change,
              values::text(
                  [](auto& s) -> auto& { return s.run.directory; }, "path"),
              "Where metrics, the resolved deck and the checkpoints of the run go."},
             {"run", "seed", "1234", fixed, seed(), "Seed of the document order and of every other random choice."},
             {"run", "steps", "none", may_change,
              values::integer([](auto& s) -> auto& { return s.run.steps; }, {.least = 1, .word = "none", .word_value = -1}),
              "Length of the run in optimizer steps; instead of epochs."},
             {"run", "epochs", "1", may_change, epochs(),
              "Length of the run in passes over the documents, rounded up to steps; instead of steps."},
             {"run", "stop_step", "none", may_change,
              values::integer([](auto& s) -> auto& { return s.run.stop_step; }, {.least = 1, .word = "none", .word_value = -1}),
              "Ends early after this step, with exit code 0; the learning rate still goes by steps or epochs."},
             {"run", "log_every", "1", may_change, values::integer([](auto& s) -> auto& { return s.run.log_every; }, {.least = 1}),
              "Steps between two progress lines."}}};
}

Section model_section() {
    return {"model",
            "what is trained",
            {{"model", "weights", "", by_content,
              values::text(
                  [](auto& s) -> auto& { return s.model.weights; }, "path"),
              "HDF5 weights file or Hugging Face folder; for eval also a checkpoint."}}};
}

Section data_section() {
    return {"data",
            "what it is trained on",
            {{"data", "tokens", "", by_content,
              values::text(
                  [](auto& s) -> auto& { return s.data.tokens; }, "path"),
              "Token file with the groups train and, optionally, validation."},
             {"data", "shuffle", "true", fixed, values::boolean([](auto& s) -> auto& { return s.data.shuffle; }),
              "A new permutation of the documents for each epoch; false takes them in file order."},
             {"data", "max_sequence", "0", fixed, values::integer([](auto& s) -> auto& { return s.data.max_sequence; }, {}),
              "Longer documents are cut to this many tokens and counted; 0 is no limit."}}};
}

Section batch_section() {
    return {"batch",
            "how much goes into one optimizer step",
            {{"batch", "sequences", "32", fixed,
              values::integer([](auto& s) -> auto& { return s.batch.sequences; }, {.least = 1, .word = "none", .word_value = 0}),
              "Documents per optimizer step over all ranks; instead of tokens."},
             {"batch", "tokens", "none", fixed,
              values::integer([](auto& s) -> auto& { return s.batch.tokens; }, {.least = 1, .word = "none", .word_value = 0}),
              "Tokens per optimizer step over all ranks: documents are taken while their sum stays within it, at least one; instead of "
              "sequences."},
             {"batch", "micro_tokens", "auto", may_change, micro_tokens(),
              "Capacity in tokens of one micro-batch of one rank; auto is the larger of 4096 and the longest document."},
             {"batch", "shares", "equal", may_change, values::only_default("equal", "auto, or one number a rank: 1,2,5"),
              "How the work is split over the ranks."}}};
}

Section optimizer_section() {
    const auto schedules =
        values::Choices<Schedule>{{{"constant", Schedule::constant}, {"linear", Schedule::linear}, {"cosine", Schedule::cosine}}};
    return {"optimizer",
            "AdamW and its learning rate",
            {{"optimizer", "learning_rate", "1e-5", fixed,
              values::number(
                  [](auto& s) -> auto& { return s.optimizer.learning_rate; }, not_negative),
              "Highest learning rate, reached after the warm-up."},
             {"optimizer", "schedule", "cosine", fixed,
              values::choice(
                  [](auto& s) -> auto& { return s.optimizer.schedule; }, schedules),
              "Course of the learning rate after the warm-up."},
             {"optimizer", "warmup_steps", "0", fixed, values::integer([](auto& s) -> auto& { return s.optimizer.warmup_steps; }, {}),
              "Steps over which the learning rate rises linearly."},
             {"optimizer", "min_lr_ratio", "0.1", fixed,
              values::number(
                  [](auto& s) -> auto& { return s.optimizer.min_lr_ratio; }, fraction),
              "Learning rate at the end of linear and cosine, as a part of learning_rate."},
             {"optimizer", "beta1", "0.9", fixed,
              values::number(
                  [](auto& s) -> auto& { return s.optimizer.beta1; }, below_one),
              "Decay of the first moment."},
             {"optimizer", "beta2", "0.95", fixed,
              values::number(
                  [](auto& s) -> auto& { return s.optimizer.beta2; }, below_one),
              "Decay of the second moment."},
             {"optimizer", "epsilon", "1e-8", fixed,
              values::number(
                  [](auto& s) -> auto& { return s.optimizer.epsilon; }, positive),
              "Added to the root of the second moment."},
             {"optimizer", "weight_decay", "0.1", fixed,
              values::number(
                  [](auto& s) -> auto& { return s.optimizer.weight_decay; }, not_negative),
              "Decoupled decay of parameters of two or more dimensions."},
             {"optimizer", "clip_norm", "1", fixed,
              values::number(
                  [](auto& s) -> auto& { return s.optimizer.clip_norm; }, not_negative),
              "Gradients above this global norm are scaled down to it; 0 is off."}}};
}

/// equal, or one number per rank: "2,2,1".
KeyValue shares() {
    auto set = [](Settings& s, const std::string& text) {
        s.sharding.shares.clear();
        if (text == "equal") return;
        if (text == "auto")
            throw BadValue("shares by measured memory are not in this version; expected equal, or one number per rank: 2,2,1");
        for (const std::string& item : list_items(text)) {
            try {
                s.sharding.shares.push_back(values::parse_number(item, {}));
            } catch (const BadValue&) {
                throw BadValue(fmt::format("'{}' in it is no number of 0 or more; expected equal, or one number per rank: 2,2,1", item));
            }
        }
    };
    auto get = [](const Settings& s) {
        std::vector<std::string> items;
        for (const double share : s.sharding.shares) items.push_back(values::print_number(share));
        return items.empty() ? std::string("equal") : joined(items, ",");
    };
    return {"equal, or one number a rank: 2,2,1", set, get};
}

Section sharding_section() {
    values::Choices<std::string> strategies{{{"auto", "auto"}}};
    for (const NamedStrategy& s : named_strategies()) {
        strategies.words.emplace_back(s.name, s.name);
        for (const auto alias : s.aliases) strategies.words.emplace_back(alias, s.name);
    }
    const auto placements = values::Choices<std::optional<Placement>>{
        {{"strategy", std::nullopt}, {"replica", Placement::replica}, {"node", Placement::node}, {"world", Placement::world}}};
    return {"sharding",
            "which state is split over whom (docs/sharding.md)",
            {{"sharding", "strategy", "auto", may_change,
              values::choice(
                  [](auto& s) -> auto& { return s.sharding.strategy; }, strategies),
              "A row of the table of strategies; auto is full_shard on one node and hierarchical_shard on several."},
             {"sharding", "parameters", "strategy", may_change,
              values::choice(
                  [](auto& s) -> auto& { return s.sharding.parameters; }, placements),
              "Over whom weights are split, where the strategy's row is not wanted."},
             {"sharding", "gradients", "strategy", may_change,
              values::choice(
                  [](auto& s) -> auto& { return s.sharding.gradients; }, placements),
              "Over whom gradients are split."},
             {"sharding", "optimizer", "strategy", may_change,
              values::choice(
                  [](auto& s) -> auto& { return s.sharding.optimizer; }, placements),
              "Over whom masters and moments are split."},
             {"sharding", "node_size", "auto", may_change,
              values::integer([](auto& s) -> auto& { return s.sharding.node_size; },
                              {.least = 1, .most = 1 << 20, .word = "auto", .word_value = 0}),
              "Consecutive ranks that make a node; auto asks the machine."},
             {"sharding", "shares", "equal", may_change, shares(), "How split state is divided over the ranks; 0 gives a rank nothing."},
             {"sharding", "keep_gathered", "false", may_change, values::boolean([](auto& s) -> auto& { return s.sharding.keep_gathered; }),
              "Split weights stay whole from their first use to the next step: one gather a step for the memory of a replica."},
             {"sharding", "prefetch", "true", may_change, values::boolean([](auto& s) -> auto& { return s.sharding.prefetch; }),
              "Gather the next unit while this one computes."}}};
}

Section precision_section() {
    const auto compute =
        values::Choices<std::optional<DType>>{{{"auto", std::nullopt}, {"fp32", DType::f32}, {"bf16", DType::bf16}}, {"fp16"}};
    const auto state = values::Choices<DType>{{{"fp32", DType::f32}}, {"bf16"}};
    const auto kept = values::Choices<DType>{{{"fp32", DType::f32}, {"bf16", DType::bf16}}};
    const auto wire = values::Choices<DType>{{{"fp32", DType::f32}, {"bf16", DType::bf16}, {"fp16", DType::f16}}};
    return {"precision",
            "number formats",
            {{"precision", "compute", "auto", fixed,
              values::choice(
                  [](auto& s) -> auto& { return s.precision.compute; }, compute),
              "Format of activations and of the weights they meet; auto is bf16 where every rank's device has it in hardware, else fp32."},
             {"precision", "master", "fp32", fixed,
              values::choice(
                  [](auto& s) -> auto& { return s.precision.master; }, state),
              "Format of the master weights."},
             {"precision", "moments", "fp32", fixed,
              values::choice(
                  [](auto& s) -> auto& { return s.precision.moments; }, state),
              "Format of the optimizer's moments."},
             {"precision", "gradients", "fp32", fixed,
              values::choice(
                  [](auto& s) -> auto& { return s.precision.gradients; }, kept),
              "Format in which summed gradients are kept."},
             {"precision", "reduce", "fp32", fixed,
              values::choice(
                  [](auto& s) -> auto& { return s.precision.reduce; }, wire),
              "Format of gradients on the wire."},
             {"precision", "tf32", "false", fixed, values::boolean([](auto& s) -> auto& { return s.precision.tf32; }),
              "On GPUs, products of fp32 in TF32: 10 bits of mantissa, several times as fast."},
             {"precision", "loss_scale", "auto", fixed, values::only_default("auto", "a number, for fp16"), "Loss scale of fp16."},
             {"precision", "loss_scale_window", "1000", fixed, values::only_default("1000", "any number of steps, for fp16"),
              "Steps without overflow after which the loss scale of fp16 grows."}}};
}

Section memory_section() {
    return {"memory",
            "memory bought with time",
            {{"memory", "recompute", "none", may_change, values::only_default("none", "block, or a number of blocks"),
              "Activations that are computed again in the backward pass."},
             {"memory", "offload", "none", may_change, values::only_default("none", "optimizer, optimizer+gradients"),
              "State that lives in host memory."}}};
}

Section checkpoint_section() {
    return {"checkpoint",
            "what is kept of a run",
            {{"checkpoint", "every", "0", may_change, checkpoint_every(),
              "Steps or time between checkpoints; 0 is only at the end and on signals."},
             {"checkpoint", "keep", "2", may_change, values::integer([](auto& s) -> auto& { return s.checkpoint.keep; }, {.least = 1}),
              "How many checkpoints stay; older ones are removed."},
             {"checkpoint", "asynchronous", "true", may_change, values::boolean([](auto& s) -> auto& { return s.checkpoint.asynchronous; }),
              "Write in the background while training goes on; this version takes both values and lets training wait."},
             {"checkpoint", "resume", "auto", may_change,
              values::text(
                  [](auto& s) -> auto& { return s.checkpoint.resume; }, "auto, never, or the path of a checkpoint"),
              "auto goes on from the newest whole checkpoint of the directory, or starts afresh where there is none; never refuses a used "
              "directory."}}};
}

Section evaluation_section() {
    return {"evaluation",
            "validation during the run",
            {{"evaluation", "every", "0", may_change, values::integer([](auto& s) -> auto& { return s.evaluation.every; }, {}),
              "Steps between validations; 0 is only before the first and after the last step."},
             {"evaluation", "documents", "all", may_change,
              values::integer([](auto& s) -> auto& { return s.evaluation.documents; }, {.least = 1, .word = "all", .word_value = 0}),
              "How many documents of the validation group are used."}}};
}

Section communication_section() {
    const auto backends = values::Choices<std::string>{{{"auto", "auto"}, {"mpi", "mpi"}, {"nccl", "nccl"}}};
    return {"communication",
            "between the ranks",
            {{"communication", "backend", "auto", may_change,
              values::choice(
                  [](auto& s) -> auto& { return s.communication.backend; }, backends),
              "Library of the collectives; auto is NCCL between GPUs where the program has it, else MPI. With mpi, ranks may share a GPU."},
             {"communication", "hang_report_s", "20", may_change,
              values::number(
                  [](auto& s) -> auto& { return s.communication.hang_report_s; }, positive),
              "Seconds without any progress after which a waiting collective is reported."},
             {"communication", "timeout_s", "600", may_change,
              values::number(
                  [](auto& s) -> auto& { return s.communication.timeout_s; }, positive),
              "Seconds without any progress after which the run is ended with exit code 5."}}};
}

Section device_section() {
    const auto kinds = values::Choices<std::string>{{{"auto", "auto"}, {"cpu", "cpu"}, {"cuda", "cuda"}}};
    const auto attentions = values::Choices<std::string>{{{"auto", "auto"}, {"own", "own"}, {"cudnn", "cudnn"}}};
    return {
        "device",
        "what a rank computes on",
        {{"device", "kind", "auto", may_change,
          values::choice(
              [](auto& s) -> auto& { return s.device.kind; }, kinds),
          "Kind of device; auto is a GPU where every rank has one, and the CPU where none has (docs/gpu.md)."},
         {"device", "threads", "auto", may_change,
          values::integer([](auto& s) -> auto& { return s.device.threads; }, {.least = 1, .most = 4096, .word = "auto", .word_value = 0}),
          "Threads of one rank on CPUs; auto is the cores of the node divided by its ranks."},
         {"device", "memory_limit", "none", may_change, memory_limit(),
          "Memory of the device that a rank may use; a run that would need more ends before its first step."},
         {"device", "attention", "auto", may_change,
          values::choice(
              [](auto& s) -> auto& { return s.device.attention; }, attentions),
          "Who computes attention on GPUs; auto is cuDNN where the program has it and it serves, else own kernels (docs/gpu.md)."}}};
}

}  // namespace

const std::vector<Section>& deck_sections() {
    static const std::vector<Section> sections{run_section(),
                                               model_section(),
                                               data_section(),
                                               batch_section(),
                                               optimizer_section(),
                                               sharding_section(),
                                               precision_section(),
                                               memory_section(),
                                               checkpoint_section(),
                                               evaluation_section(),
                                               communication_section(),
                                               device_section(),
                                               Section{"nccl", "any NCCL_* variable, set before NCCL starts", {}}};
    return sections;
}

const Section* find_section(std::string_view name) {
    for (const Section& section : deck_sections())
        if (section.name == name) return &section;
    return nullptr;
}

const Key* find_key(std::string_view full_name) {
    for (const Section& section : deck_sections())
        for (const Key& key : section.keys)
            if (key.full_name() == full_name) return &key;
    return nullptr;
}

std::string nearest_key(const std::string& full_name) {
    const std::string name = full_name.substr(full_name.find('.') + 1);  // npos + 1 is 0: all of a name without a section
    const std::string section_name = full_name.substr(0, full_name.find('.'));
    const auto& sections = deck_sections();
    const bool known =
        name != full_name && std::any_of(sections.begin(), sections.end(), [&](const Section& s) { return s.name == section_name; });
    std::string best;
    std::size_t best_distance = std::string::npos;
    for (const Section& section : sections)
        for (const Key& key : section.keys) {
            std::size_t distance = std::min(edit_distance(full_name, key.full_name()), edit_distance(name, key.name) + 1);
            if (known && section.name == section_name && abbreviates(name, key.name))
                distance = std::min<std::size_t>(distance, 2);  // optimizer.lr
            // of another section than the one that is named only what is nearly the same: run.learning_rate, data.sed
            if (known && section.name != section_name && edit_distance(name, key.name) > 1) continue;
            if (distance >= best_distance) continue;
            best_distance = distance;
            best = key.full_name();
        }
    return best;
}

bool is_nccl_variable(std::string_view name) {
    return name.size() > 5 && name.starts_with("NCCL_") &&
           name.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == std::string_view::npos;
}

}  // namespace sherd
