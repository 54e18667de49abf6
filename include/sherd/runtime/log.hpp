#pragma once
/// Lines for people. Results and progress go to stdout (rank 0 only), notices, warnings and errors to stderr.
#include <fmt/format.h>

#include <string>
#include <utility>

namespace sherd::log {

/// One line on stdout, from rank 0 only; written with a single write so that lines of several processes never mix.
void line(const std::string& text);
/// errno of the first line that stdout could not take; 0: it took all.
int lost_output();
/// "sherd: notice: text" on stderr, from rank 0 only: something was assumed or adapted, nothing is wrong.
void notice(const std::string& text);
/// "sherd: warning: text" on stderr, from rank 0 only.
void warning(const std::string& text);
/// The same from whichever rank calls; the text names it.
void warning_of_any_rank(const std::string& text);
/// "sherd: error: text" on stderr, from whichever rank calls.
void error(const std::string& text);
/// Replaces the last line of a terminal (progress); does nothing when stdout is not a terminal or on ranks other than 0.
void progress(const std::string& text);
/// Whether what this process prints ends on a terminal, seen through mpirun on the same machine.
bool stdout_is_terminal();

}  // namespace sherd::log
