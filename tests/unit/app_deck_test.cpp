#include "app/options.hpp"

#include "sherd/app/deck.hpp"
#include "sherd/app/deck_file.hpp"
#include "sherd/runtime/error.hpp"

#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <map>
#include <sstream>

using namespace sherd;

namespace {

using Keys = std::map<std::string, std::string>;

/// Resolves keys as if from a deck, with the required ones added.
Settings resolve(Keys keys) {
    keys.emplace("model.weights", "w.h5");
    keys.emplace("data.tokens", "t.h5");
    std::vector<GivenKey> given;
    for (const auto& [name, value] : keys) given.push_back({name, value, "d.ini:7", false});
    return resolve_deck(given, "d");
}

std::string failure_of(const std::string& name, const std::string& value) {
    try {
        resolve({{name, value}});
    } catch (const UsageError& error) {
        return error.what();
    }
    return "";
}

/// The printed deck, read and resolved again.
std::string print_again(const std::string& text) {
    std::vector<GivenKey> given;
    for (const DeckEntry& entry : parse_deck(text, "printed")) given.push_back({entry.full_name(), entry.value, "printed", false});
    return resolve_deck(given, "other").text;
}

std::string value_in(const std::string& text, const std::string& full_name) {
    for (const DeckEntry& entry : parse_deck(text, "printed"))
        if (entry.full_name() == full_name) return entry.value;
    return "absent";
}

}  // namespace

TEST(Deck, DefaultsAreThoseOfTheContract) {
    const Settings s = resolve({});
    EXPECT_EQ(s.run.name, "d");
    EXPECT_EQ(s.run.directory, "checkpoints/d");
    EXPECT_EQ(s.run.seed, 1234u);
    EXPECT_EQ(s.run.steps, -1);
    EXPECT_EQ(s.run.epochs, 1.0);
    EXPECT_EQ(s.run.stop_step, -1);
    EXPECT_EQ(s.run.log_every, 1);
    EXPECT_TRUE(s.data.shuffle);
    EXPECT_EQ(s.data.max_sequence, 0);
    EXPECT_EQ(s.batch.sequences, 32);
    EXPECT_EQ(s.batch.tokens, 0);
    EXPECT_TRUE(s.batch.micro_tokens.empty());
    EXPECT_EQ(s.optimizer.learning_rate, 1e-5);
    EXPECT_EQ(s.optimizer.schedule, Schedule::cosine);
    EXPECT_EQ(s.optimizer.warmup_steps, 0);
    EXPECT_EQ(s.optimizer.min_lr_ratio, 0.1);
    EXPECT_EQ(s.optimizer.beta1, 0.9);
    EXPECT_EQ(s.optimizer.beta2, 0.95);
    EXPECT_EQ(s.optimizer.epsilon, 1e-8);
    EXPECT_EQ(s.optimizer.weight_decay, 0.1);
    EXPECT_EQ(s.optimizer.clip_norm, 1.0);
    EXPECT_EQ(s.sharding.strategy, "auto");
    EXPECT_FALSE(s.precision.compute.has_value());
    EXPECT_EQ(s.checkpoint.every_steps, 0);
    EXPECT_EQ(s.checkpoint.every_seconds, 0);
    EXPECT_EQ(s.checkpoint.keep, 2);
    EXPECT_TRUE(s.checkpoint.asynchronous);
    EXPECT_EQ(s.checkpoint.resume, "auto");
    EXPECT_EQ(s.evaluation.every, 0);
    EXPECT_EQ(s.evaluation.documents, 0);
    EXPECT_EQ(s.communication.hang_report_s, 20);
    EXPECT_EQ(s.communication.timeout_s, 600);
    EXPECT_EQ(s.device.threads, 0);
    EXPECT_EQ(s.device.attention, "auto");
}

TEST(Deck, ValuesReachTheirFields) {
    const Settings s = resolve({{"run.seed", "18446744073709551615"},
                                {"run.steps", "80"},
                                {"run.directory", "/tmp/a b#c"},
                                {"data.shuffle", "no"},
                                {"batch.tokens", "4096"},
                                {"batch.micro_tokens", "4096, 4096,1024"},
                                {"optimizer.schedule", "linear"},
                                {"optimizer.beta2", "0.999"},
                                {"sharding.strategy", "ddp"},
                                {"precision.compute", "bf16"},
                                {"checkpoint.every", "30min"},
                                {"checkpoint.resume", "checkpoints/x/step-00000040"},
                                {"evaluation.documents", "7"},
                                {"device.threads", "3"},
                                {"device.kind", "cuda"},
                                {"device.attention", "own"},
                                {"device.memory_limit", "30GiB, 1.5 GiB,12000000000"},
                                {"communication.backend", "nccl"},
                                {"precision.tf32", "true"},
                                {"nccl.NCCL_DEBUG", "INFO"}});
    EXPECT_EQ(s.run.seed, 18446744073709551615u);
    EXPECT_EQ(s.run.steps, 80);
    EXPECT_EQ(s.run.directory, "/tmp/a b#c");
    EXPECT_FALSE(s.data.shuffle);
    EXPECT_EQ(s.batch.tokens, 4096);
    EXPECT_EQ(s.batch.sequences, 0);
    EXPECT_EQ(s.batch.micro_tokens, (std::vector<std::int64_t>{4096, 4096, 1024}));
    EXPECT_EQ(s.optimizer.schedule, Schedule::linear);
    EXPECT_EQ(s.optimizer.beta2, 0.999);
    EXPECT_EQ(s.sharding.strategy, "no_shard");
    EXPECT_EQ(s.precision.compute, DType::bf16);
    EXPECT_EQ(s.checkpoint.every_steps, 0);
    EXPECT_EQ(s.checkpoint.every_seconds, 1800);
    EXPECT_EQ(s.checkpoint.resume, "checkpoints/x/step-00000040");
    EXPECT_EQ(s.evaluation.documents, 7);
    EXPECT_EQ(s.device.threads, 3);
    EXPECT_EQ(s.device.kind, "cuda");
    EXPECT_EQ(s.device.attention, "own");
    EXPECT_EQ(s.device.memory_limit, (std::vector<std::uint64_t>{30ull << 30, 3ull << 29, 12'000'000'000}));
    EXPECT_EQ(s.communication.backend, "nccl");
    EXPECT_TRUE(s.precision.tf32);
    EXPECT_EQ(s.nccl.at("NCCL_DEBUG"), "INFO");
}

TEST(Deck, BooleansTakeFourSpellings) {
    for (const char* text : {"true", "yes", "on", "1"}) EXPECT_TRUE(resolve({{"checkpoint.asynchronous", text}}).checkpoint.asynchronous);
    for (const char* text : {"false", "no", "off", "0"}) EXPECT_FALSE(resolve({{"checkpoint.asynchronous", text}}).checkpoint.asynchronous);
}

TEST(Deck, TimesHaveUnits) {
    const std::map<std::string, double> times{{"90s", 90}, {"30min", 1800}, {"2h", 7200}, {"1.5h", 5400}, {"0.5min", 30}};
    for (const auto& [text, seconds] : times) {
        const Settings s = resolve({{"checkpoint.every", text}});
        EXPECT_EQ(s.checkpoint.every_seconds, seconds) << text;
        EXPECT_EQ(s.checkpoint.every_steps, 0) << text;
    }
    EXPECT_EQ(resolve({{"checkpoint.every", "40"}}).checkpoint.every_steps, 40);
}

TEST(Deck, WrongValuesNameDeckLineKeyAndWhatIsAllowed) {
    const std::vector<std::array<std::string, 3>> cases{
        {"run.steps", "three", "integer, 1 or more"},
        {"run.steps", "0", "integer, 1 or more"},
        {"run.steps", "-1", "integer, 1 or more"},
        {"run.steps", "3.0", "integer"},
        {"run.steps", "1e3", "integer"},
        {"run.steps", "0x10", "integer"},
        {"run.steps", " 3", "integer"},
        {"run.steps", "+3", "integer"},
        {"run.steps", "99999999999999999999", "integer"},
        {"run.steps", "9000000000000000000", "too large"},
        {"run.steps", "", "integer"},
        {"run.seed", "-1", "from 0 to"},
        {"run.seed", "18446744073709551616", "from 0 to"},
        {"run.epochs", "0", "number from above 0"},
        {"run.name", "a/b", "without '/'"},
        {"run.name", "..", "without '/'"},
        {"run.directory", "", "no value"},
        {"run.directory", "a\nb", "line break"},
        {"data.shuffle", "True", "true or false"},
        {"batch.micro_tokens", "4096,", "one per rank"},
        {"batch.micro_tokens", "0", "one per rank"},
        {"batch.micro_tokens", "4096;1024", "one per rank"},
        {"batch.shares", "1,2", "not in this version"},
        {"optimizer.learning_rate", "nan", "number, 0 or more"},
        {"optimizer.learning_rate", "inf", "number, 0 or more"},
        {"optimizer.learning_rate", "1e999", "number, 0 or more"},
        {"optimizer.learning_rate", "1,5", "number, 0 or more"},
        {"optimizer.learning_rate", "-1e-5", "number, 0 or more"},
        {"optimizer.beta1", "1", "from 0 to below 1"},
        {"optimizer.min_lr_ratio", "1.5", "from 0 to 1"},
        {"optimizer.epsilon", "0", "above 0"},
        {"optimizer.schedule", "cosin", "constant, linear, cosine"},
        {"sharding.strategy", "zero9", "expected one of auto, no_shard, ddp, shard_opt"},
        {"sharding.parameters", "rank", "expected one of strategy, replica, node, world"},
        {"sharding.node_size", "0", "1 or more"},
        {"sharding.shares", "auto", "not in this version"},
        {"sharding.shares", "2,-1", "'-1' in it is no number of 0 or more"},
        {"precision.compute", "fp16", "not in this version"},
        {"precision.compute", "fp8", "auto, fp32, bf16"},
        {"precision.master", "bf16", "not in this version"},
        {"precision.moments", "bf16", "not in this version"},
        {"precision.loss_scale", "1024", "not in this version"},
        {"precision.loss_scale_window", "10", "not in this version"},
        {"memory.recompute", "block", "not in this version"},
        {"memory.offload", "optimizer", "not in this version"},
        {"checkpoint.every", "30 min", "90s, 30min or 2h"},
        {"checkpoint.every", "0s", "90s, 30min or 2h"},
        {"checkpoint.every", "min", "90s, 30min or 2h"},
        {"checkpoint.every", "-5", "90s, 30min or 2h"},
        {"checkpoint.keep", "0", "integer, 1 or more"},
        {"communication.backend", "gloo", "auto, mpi, nccl"},
        {"communication.timeout_s", "0", "above 0"},
        {"device.kind", "gpu", "auto, cpu, cuda"},
        {"device.threads", "5000", "too large"},
        {"device.memory_limit", "30 gigabytes", "16000000000, 512MiB or 30GiB"},
        {"device.memory_limit", "30GiB,", "512MiB"},
        {"device.memory_limit", "0", "512MiB"},
        {"device.memory_limit", "-1GiB", "512MiB"},
        {"device.memory_limit", "GiB", "512MiB"},
        {"nccl.NCCL_debug", "INFO", "NCCL_*"},
        {"nccl.NCCL_DEBUG", "", "one line"},
    };
    for (const auto& [name, value, part] : cases) {
        const std::string message = failure_of(name, value);
        EXPECT_TRUE(message.starts_with("d.ini:7: ")) << name << " = " << value << ": " << message;
        EXPECT_NE(message.find(name.substr(name.find('.') + 1)), std::string::npos) << message;
        EXPECT_NE(message.find(part), std::string::npos) << "no '" << part << "' in: " << message;
    }
}

TEST(Deck, RequiredKeysAreNamed) {
    for (const std::string missing : {"model.weights", "data.tokens"}) {
        const std::string other = missing == "model.weights" ? "data.tokens" : "model.weights";
        try {
            resolve_deck({{other, "x", "d.ini:1", false}}, "d");
            ADD_FAILURE() << missing << " is not required";
        } catch (const UsageError& error) {
            EXPECT_NE(std::string(error.what()).find(missing + " is required"), std::string::npos) << error.what();
        }
    }
}

TEST(Deck, RivalsOfOnePlaceAreRefusedAndTheCommandLineWins) {
    EXPECT_THROW(resolve({{"run.steps", "3"}, {"run.epochs", "1"}}), UsageError);
    EXPECT_THROW(resolve({{"batch.sequences", "3"}, {"batch.tokens", "100"}}), UsageError);
    const std::vector<GivenKey> required{{"model.weights", "w", "d.ini:1", false}, {"data.tokens", "t", "d.ini:2", false}};
    auto given = required;
    given.push_back({"run.steps", "3", "command line", true});
    given.push_back({"run.epochs", "1", "command line", true});
    EXPECT_THROW(resolve_deck(given, "d"), UsageError);

    given = required;
    given.push_back({"run.epochs", "3", "d.ini:3", false});
    given.push_back({"run.steps", "5", "command line", true});
    given.push_back({"batch.tokens", "100", "d.ini:4", false});
    given.push_back({"batch.sequences", "6", "command line", true});
    testing::internal::CaptureStderr();
    const Settings s = resolve_deck(given, "d");
    const std::string notices = testing::internal::GetCapturedStderr();
    EXPECT_NE(notices.find("run.steps of the command line takes the place of run.epochs (d.ini:3)"), std::string::npos) << notices;
    EXPECT_EQ(s.run.steps, 5);
    EXPECT_EQ(s.batch.sequences, 6);
    EXPECT_EQ(s.batch.tokens, 0);
}

TEST(Deck, NoneLeavesARivalOut) {
    EXPECT_EQ(resolve({{"run.steps", "none"}, {"run.epochs", "2"}}).run.epochs, 2);
    EXPECT_EQ(resolve({{"run.steps", "none"}, {"run.epochs", "none"}}).run.epochs, 1);
    EXPECT_EQ(resolve({{"run.steps", "5"}, {"run.epochs", "none"}}).run.steps, 5);
    EXPECT_EQ(resolve({{"batch.sequences", "none"}, {"batch.tokens", "none"}}).batch.sequences, 32);
}

TEST(Deck, PrintedDeckHasEveryKeyAndIsAFixedPoint) {
    const std::vector<Keys> decks{
        {},
        {{"run.steps", "80"}, {"batch.tokens", "4096"}, {"batch.micro_tokens", "4096,1024"}, {"optimizer.learning_rate", "0.00001"}},
        {{"run.epochs", "0.1"},
         {"checkpoint.every", "90s"},
         {"nccl.NCCL_SOCKET_IFNAME", "=eth0,eth1"},
         {"nccl.NCCL_DEBUG_FILE", "/tmp/a #b"}},
        {{"run.name", "it's #1"}, {"run.directory", "/tmp/run#3"}, {"model.weights", " a b=c,d.h5 "}, {"data.tokens", "\"q\" 'r' #s"}},
        {{"run.directory", "#"},
         {"model.weights", "\""},
         {"data.tokens", "\\"},
         {"checkpoint.resume", "[x];y"},
         {"checkpoint.every", "1e-3s"}},
        {{"optimizer.learning_rate", "1e30"}, {"optimizer.epsilon", "1e-300"}, {"optimizer.weight_decay", "0.30000000000000004"}},
    };
    for (const Keys& keys : decks) {
        const Settings s = resolve(keys);
        EXPECT_EQ(print_again(s.text), s.text);
        for (const Section& section : deck_sections())
            for (const Key& key : section.keys) EXPECT_NE(value_in(s.text, key.full_name()), "absent") << key.full_name();
        for (const auto& [name, value] : keys) {
            const bool text = name == "run.directory" || name.starts_with("model.") || name.starts_with("nccl.");
            if (text) {
                EXPECT_EQ(value_in(s.text, name), value);
            }
        }
    }
}

TEST(Deck, PrintedValuesAreCanonical) {
    const std::string text =
        resolve({{"optimizer.learning_rate", "0.00001"}, {"run.steps", "80"}, {"checkpoint.every", "7200s"}, {"data.shuffle", "off"}}).text;
    EXPECT_EQ(value_in(text, "optimizer.learning_rate"), "1e-5");
    EXPECT_EQ(value_in(text, "optimizer.clip_norm"), "1");
    EXPECT_EQ(value_in(text, "run.steps"), "80");
    EXPECT_EQ(value_in(text, "run.epochs"), "none");
    EXPECT_EQ(value_in(text, "checkpoint.every"), "2h");
    EXPECT_EQ(value_in(text, "data.shuffle"), "false");
    EXPECT_EQ(value_in(text, "batch.micro_tokens"), "auto");
    EXPECT_EQ(value_in(text, "sharding.strategy"), "auto");
}

TEST(Deck, ChangesAreListedWithTheirRule) {
    const std::string before =
        resolve({{"run.steps", "20"}, {"optimizer.beta1", "0.8"}}).text + "\n[nccl]\nNCCL_DEBUG = INFO\n[old]\nkey = 1\n";
    const std::string after = resolve({{"run.steps", "25"}, {"model.weights", "v.h5"}}).text;
    const auto changes = deck_changes(before, after);
    ASSERT_EQ(changes.size(), 5u);
    EXPECT_EQ(changes[0].full_name, "run.steps");
    EXPECT_EQ(changes[0].before, "20");
    EXPECT_EQ(changes[0].after, "25");
    EXPECT_EQ(changes[0].on_resume, OnResume::may_change);
    EXPECT_EQ(changes[1].full_name, "model.weights");
    EXPECT_EQ(changes[1].on_resume, OnResume::by_content);
    EXPECT_EQ(changes[2].full_name, "optimizer.beta1");
    EXPECT_EQ(changes[2].on_resume, OnResume::fixed);
    EXPECT_EQ(changes[3].full_name, "nccl.NCCL_DEBUG");
    EXPECT_EQ(changes[3].on_resume, OnResume::may_change);
    EXPECT_EQ(changes[4].full_name, "old.key");
    EXPECT_EQ(changes[4].on_resume, OnResume::fixed);
    EXPECT_TRUE(deck_changes(after, after).empty());
}

TEST(Deck, HelpCoversEveryKey) {
    const std::string help = run_help("train", "Trains.", {{"validate", "check"}});
    for (const Section& section : deck_sections()) {
        EXPECT_NE(help.find("\n[" + section.name + "]"), std::string::npos) << section.name;
        for (const Key& key : section.keys) {
            EXPECT_EQ(key.section, section.name);
            EXPECT_FALSE(key.help.empty()) << key.full_name();
            EXPECT_NE(help.find("\n  " + key.name + " "), std::string::npos) << key.full_name();
        }
    }
    EXPECT_NE(help.find("--validate"), std::string::npos);
}

TEST(Deck, DocumentHoldsTheTableOfKeys) {
    std::ifstream file("docs/deck.md");
    ASSERT_TRUE(file.good()) << "run from the root of the tree";
    std::stringstream text;
    text << file.rdbuf();
    const std::string whole = text.str(), begin = "<!-- keys: from `sherd train --print-keys`; a test compares -->\n",
                      end = "<!-- end of keys -->";
    const auto first = whole.find(begin), last = whole.find(end);
    ASSERT_NE(first, std::string::npos);
    ASSERT_NE(last, std::string::npos);
    std::string table = whole.substr(first + begin.size(), last - first - begin.size());
    const auto trim = [](std::string& s) {
        s.erase(0, s.find_first_not_of('\n'));
        s.erase(s.find_last_not_of('\n') + 1);
    };
    std::string expected = keys_as_markdown();
    trim(table);
    trim(expected);
    EXPECT_EQ(table, expected) << "docs/deck.md is behind the table: put in the output of sherd train --print-keys";
}
