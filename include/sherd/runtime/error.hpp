#pragma once
/// Errors and the exit codes they end in. Which mechanism to use when: docs/errors.md.
#include <fmt/format.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <utility>

namespace sherd {

/// Exit codes of the program (docs/exit-codes.md). mpirun passes them on.
enum class ExitCode : int {
    done = 0,         ///< the run is complete, a checkpoint of the last step is on disk
    usage = 2,        ///< command line or deck
    environment = 3,  ///< machine, launch or topology
    input = 4,        ///< data, weights or checkpoint
    device = 5,       ///< device or communication
    non_finite = 6,   ///< loss or gradient is not finite
    again = 75,       ///< checkpoint written, run me again (EX_TEMPFAIL)
};

/// What some errors are besides their exit code, for those who know what to add; it stays when ranks agree on an error.
enum class Cause : char { other, out_of_memory };

/// Base of every error that sherd throws on purpose: a sentence for the user and the exit code it ends in.
class Error : public std::runtime_error {
  public:
    Error(ExitCode code, const std::string& message, Cause cause = Cause::other)
        : std::runtime_error(message), cause_(cause), code_(code) {}
    ExitCode exit_code() const noexcept { return code_; }
    Cause cause() const noexcept { return cause_; }

  protected:
    Cause cause_;

  private:
    ExitCode code_;
};

namespace detail {
/// One typed error a code, with fmt-style construction: `throw InputError("{}: no dataset '{}'", path, name)`.
template <ExitCode code>
class CodedError : public Error {
  public:
    explicit CodedError(const std::string& message) : Error(code, message) {}
    template <class First, class... Rest>
    CodedError(fmt::format_string<First, Rest...> format, First&& first, Rest&&... rest)
        : Error(code, fmt::format(format, std::forward<First>(first), std::forward<Rest>(rest)...)) {}
};
}  // namespace detail

using UsageError = detail::CodedError<ExitCode::usage>;
using EnvironmentError = detail::CodedError<ExitCode::environment>;
using InputError = detail::CodedError<ExitCode::input>;
using DeviceError = detail::CodedError<ExitCode::device>;

/// Rank of this process in the job, for messages; 0 until it is known. Set from the launcher's environment, then by Session.
int process_rank() noexcept;
void set_process_rank(int rank) noexcept;
/// When the program began.
std::chrono::steady_clock::time_point process_start() noexcept;

/// Host name of this machine, cached.
const std::string& host_name();

/// A library call failed. The message names call, file, line and rank: "MPI_Send failed at comm/mpi.cpp:40 on rank 3 (host a): ...".
std::string call_failure(const char* call, const char* file, int line, const std::string& reason);

}  // namespace sherd
