#pragma once
/// NVML, loaded when first asked: drivers bring it, toolkits and machines without a GPU do not.
#include <string>

namespace sherd {

/// "580.65.06"; empty without NVML.
std::string nvml_driver_version();

}  // namespace sherd
