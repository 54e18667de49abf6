#pragma once
/// The subcommands. Each takes the arguments after its name, returns the exit code and throws sherd's errors.
#include <string>
#include <vector>

namespace sherd {

int import_command(const std::vector<std::string>& arguments);
int export_command(const std::vector<std::string>& arguments);
int inspect_command(const std::vector<std::string>& arguments);
int train_command(const std::vector<std::string>& arguments);
int eval_command(const std::vector<std::string>& arguments);

}  // namespace sherd
