#pragma once
/// Whatever holds a model, by what lies at the path.
#include "sherd/io/weight_source.hpp"

#include <filesystem>
#include <memory>

namespace sherd::app {

/// Opens a weights file or a Hugging Face folder. Throws InputError.
std::unique_ptr<WeightSource> open_model(const std::filesystem::path& path);

}  // namespace sherd::app
