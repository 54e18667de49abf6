#pragma once
/// inspect, for checkpoints: what a set says of itself, and whether it is whole.
#include "sherd/model/config.hpp"

#include <filesystem>

namespace sherd::app {

/// Two lines on a model's dimensions, and one for each value that its config leaves out.
void print_config(const ModelConfig& config);

/// Prints what the set at `path` holds; with `verify` reads all of it. Throws InputError where there is no set or it is damaged.
void inspect_checkpoint(const std::filesystem::path& path, bool verify);

}  // namespace sherd::app
