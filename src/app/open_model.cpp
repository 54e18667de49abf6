#include "open_model.hpp"

namespace sherd::app {

std::unique_ptr<WeightSource> open_model(const std::filesystem::path& path) {
    return open_weights(path);
}

}  // namespace sherd::app
