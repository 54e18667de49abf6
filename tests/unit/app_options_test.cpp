#include "app/options.hpp"

#include "sherd/runtime/error.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <unistd.h>

using namespace sherd;

namespace {

const std::vector<Flag> flags{{"validate", "check"}, {"print-config", "print"}, {"help", "this"}};

/// A deck on disk while a test runs.
class DeckOnDisk {
  public:
    DeckOnDisk(const std::string& name, const std::string& text)
        : folder_(std::filesystem::temp_directory_path() / ("sherd-deck-" + std::to_string(::getpid()))) {
        std::filesystem::create_directories(folder_);
        path_ = folder_ / name;
        std::ofstream(path_, std::ios::binary) << text;
    }
    ~DeckOnDisk() {
        std::error_code ignored;  // a left-over file must not fail a test that passed
        std::filesystem::remove_all(folder_, ignored);
    }
    DeckOnDisk(const DeckOnDisk&) = delete;
    DeckOnDisk& operator=(const DeckOnDisk&) = delete;
    std::string path() const { return path_.string(); }

  private:
    std::filesystem::path folder_, path_;
};

RunOptions parse(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--model.weights=w", "--data.tokens=t"});
    return parse_run_options(arguments, flags);
}

std::string failure_of(const std::vector<std::string>& arguments) {
    try {
        parse(arguments);
    } catch (const UsageError& error) {
        return error.what();
    }
    return "";
}

bool holds(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

}  // namespace

TEST(Options, BothSpellingsAndWeirdValues) {
    EXPECT_EQ(parse({"--run.steps=3"}).settings.run.steps, 3);
    EXPECT_EQ(parse({"--run.steps", "3"}).settings.run.steps, 3);
    EXPECT_EQ(parse({"--run.directory=/tmp/a b=c,d #3"}).settings.run.directory, "/tmp/a b=c,d #3");
    EXPECT_EQ(parse({"--run.directory", "-x"}).settings.run.directory, "-x");
    EXPECT_EQ(parse({"--run.directory=--x"}).settings.run.directory, "--x");
    EXPECT_EQ(parse({"--run.directory='q'"}).settings.run.directory, "'q'");
    EXPECT_EQ(parse({"--nccl.NCCL_DEBUG=INFO"}).settings.nccl.at("NCCL_DEBUG"), "INFO");
    EXPECT_EQ(parse({}).settings.run.name, "run");
}

TEST(Options, FlagsAreSeen) {
    const RunOptions options = parse({"--validate", "--run.steps=3"});
    EXPECT_TRUE(options.has("validate"));
    EXPECT_FALSE(options.has("print-config"));
    EXPECT_TRUE(parse_run_options({"--help"}, flags).has("help"));  // without the required keys
}

TEST(Options, WrongOptionsSayWhatIsMeant) {
    EXPECT_TRUE(holds(failure_of({"--run.stpes=3"}), "--run.stpes; the nearest known one is --run.steps"));
    EXPECT_TRUE(holds(failure_of({"--steps=3"}), "--run.steps"));
    EXPECT_TRUE(holds(failure_of({"--run.step=3"}), "--run.steps"));  // no guessing from a prefix
    EXPECT_TRUE(holds(failure_of({"--validat"}), "--validate"));
    EXPECT_TRUE(holds(failure_of({"--print_config"}), "--print-config"));
    EXPECT_TRUE(holds(failure_of({"deck.ini"}), "--config DECK"));
    EXPECT_TRUE(holds(failure_of({"-c"}), "'-c'"));
    EXPECT_TRUE(holds(failure_of({"--run.directory", "--validate"}), "--run.directory needs a value"));
    EXPECT_TRUE(holds(failure_of({"--run.directory="}), "--run.directory"));
    EXPECT_TRUE(holds(failure_of({"--validate=1"}), "--validate"));
    EXPECT_TRUE(holds(failure_of({"--run.steps=1", "--run.steps", "2"}), "--run.steps is given twice"));
    EXPECT_TRUE(holds(failure_of({"--nccl.NCCL_A=1", "--nccl.NCCL_A=1"}), "--nccl.NCCL_A is given twice"));
    EXPECT_TRUE(holds(failure_of({"--nccl.FOO=1"}), "NCCL_*"));
    EXPECT_TRUE(holds(failure_of({"--run.steps=x"}), "command line: run.steps = 'x'"));
}

TEST(Options, CommandLineWinsOverTheDeckAndTheDeckNamesTheRun) {
    const DeckOnDisk deck("my first.deck.ini", "[run]\nsteps = 3\nseed = 5\n[data]\ntokens = other\n[nccl]\nNCCL_DEBUG = WARN\n");
    const Settings s = parse({"--config", deck.path(), "--run.steps=4"}).settings;
    EXPECT_EQ(s.run.steps, 4);
    EXPECT_EQ(s.run.seed, 5u);
    EXPECT_EQ(s.data.tokens, "t");
    EXPECT_EQ(s.run.name, "my first.deck");
    EXPECT_EQ(s.run.directory, "checkpoints/my first.deck");
    EXPECT_EQ(s.nccl.at("NCCL_DEBUG"), "WARN");
    testing::internal::CaptureStderr();
    EXPECT_EQ(parse({"--config=" + deck.path(), "--run.epochs=2"}).settings.run.epochs, 2);
    EXPECT_TRUE(holds(testing::internal::GetCapturedStderr(), "run.steps"));
}

TEST(Options, ErrorsOfValuesNameDeckAndLine) {
    const DeckOnDisk deck("bad.ini", "[run]\n\nsteps = many  # too many\n");
    EXPECT_TRUE(holds(failure_of({"--config=" + deck.path()}), "bad.ini:3: run.steps = 'many'"));
    EXPECT_EQ(failure_of({"--config=" + deck.path(), "--run.steps=1"}), "");
    EXPECT_TRUE(holds(failure_of({"--config=/no/such.ini"}), "/no/such.ini"));
}
