/// The program: finds the subcommand, and turns every error into one line on stderr and an exit code (docs/exit-codes.md).
#include "version.hpp"
#include "words.hpp"

#include "sherd/app/commands.hpp"
#include "sherd/comm/session.hpp"
#include "sherd/runtime/error.hpp"
#include "sherd/runtime/log.hpp"
#include "sherd/runtime/signals.hpp"

#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace sherd;

struct Command {
    std::string_view name, summary;
    int (*run)(const std::vector<std::string>& arguments);
};

constexpr std::array<Command, 5> commands{{
    {"train", "fine-tune a model", train_command},
    {"eval", "loss and perplexity of a model on the validation documents", eval_command},
    {"import", "a Hugging Face folder becomes an HDF5 weights file", import_command},
    {"export", "weights or a checkpoint become a Hugging Face folder", export_command},
    {"inspect", "what is in a file or a checkpoint, and is it intact", inspect_command},
}};

std::vector<std::string> command_names() {
    std::vector<std::string> names;
    names.reserve(commands.size());
    for (const Command& command : commands) names.emplace_back(command.name);
    return names;
}

std::string usage() {
    std::string text = "usage: sherd COMMAND [options]\n\n";
    for (const Command& command : commands) text += fmt::format("  {:<9} {}\n", command.name, command.summary);
    return text + "\nsherd COMMAND --help tells about its options, sherd --version about this program.";
}

/// Ranks that a launcher started; 1 without one.
int launched_ranks() {
    for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"})
        if (const char* text = std::getenv(variable)) return std::atoi(text);
    return 1;
}

int run(const Command& command, const std::vector<std::string>& arguments) {
    if ((command.name == "import" || command.name == "export") && launched_ranks() > 1)
        throw UsageError("{} is one process's work, {} were started; call it without mpirun, or with srun -n 1", command.name,
                         launched_ranks());
    const int code = command.run(arguments);
    // a training run is done all the same; what the others print is their result
    if (code == 0 && command.name != "train" && log::lost_output() != 0 && log::lost_output() != EPIPE)
        throw EnvironmentError("what '{}' had to say could not be written to stdout: {}", command.name, std::strerror(log::lost_output()));
    return code;
}

int dispatch(const std::vector<std::string>& arguments) {
    if (arguments.empty()) throw UsageError("no command given; commands are {}\n{}", joined(command_names()), usage());
    const std::string& name = arguments.front();
    if (name == "--help" || name == "-h" || name == "help") {
        log::line(usage());
        return static_cast<int>(ExitCode::done);
    }
    if (name == "--version") {
        log::line(version_text());
        return static_cast<int>(ExitCode::done);
    }
    for (const Command& command : commands)
        if (command.name == name) return run(command, {arguments.begin() + 1, arguments.end()});
    for (const std::string_view later : {"plan", "doctor", "bench"})
        if (later == name) throw UsageError("'{}' is not in this version; commands are {}", name, joined(command_names()));
    throw UsageError("unknown command '{}'; commands are {}; the nearest is {}", name, joined(command_names()),
                     nearest(name, command_names()));
}

/// Until MPI has started, the launcher's environment tells the rank; so only rank 0 prints a resolved deck.
void take_rank_of_launcher() {
    for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
        const char* text = std::getenv(variable);
        if (text == nullptr) continue;
        int rank = 0;
        const char* end = text + std::strlen(text);
        if (const auto read = std::from_chars(text, end, rank); read.ec == std::errc() && read.ptr == end && rank >= 0)
            set_process_rank(rank);
        return;
    }
}

/// An error that the ranks did not agree on: this one ends the job, since others may wait for it in a collective for ever.
int finish_with_error(const Error& error) {
    log::error(error.what());
    abort_job(error.exit_code());
    return static_cast<int>(error.exit_code());
}

}  // namespace

int main(int argc, char** argv) {
    std::signal(SIGPIPE, SIG_IGN);  // a reader of stdout that goes away (a pager, a log shipper) must not end a training run
    try {
        take_rank_of_launcher();
        return dispatch({argv + (argc > 0 ? 1 : 0), argv + argc});
    } catch (const Error& error) {
        return finish_with_error(error);
    } catch (const Interrupted& interrupted) {
        std::signal(interrupted.signal, SIG_DFL);
        std::raise(interrupted.signal);
        return 128 + interrupted.signal;
    } catch (const std::bad_alloc&) {
        return finish_with_error(DeviceError("out of memory on rank {} (host {}): use a smaller batch.micro_tokens, or more memory a rank",
                                             process_rank(), host_name()));
    } catch (const std::exception& error) {
        return finish_with_error(InputError("unexpected error on rank {} (host {}): {}", process_rank(), host_name(), error.what()));
    } catch (...) {
        return finish_with_error(InputError("unexpected error of no known kind on rank {} (host {})", process_rank(), host_name()));
    }
}
