#pragma once
/// The subcommands: `arguments` are those after the command's name; the exit code is returned; sherd errors are thrown.
#include <string>
#include <vector>

namespace sherd {

int import_command(const std::vector<std::string>& arguments);
int export_command(const std::vector<std::string>& arguments);
int inspect_command(const std::vector<std::string>& arguments);
int train_command(const std::vector<std::string>& arguments);
int eval_command(const std::vector<std::string>& arguments);

}  // namespace sherd
