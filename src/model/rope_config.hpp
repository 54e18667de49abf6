#pragma once
#include "model/config_reader.hpp"

#include "sherd/model/config.hpp"

namespace sherd {

/// The rotary embedding from both spellings: `rope_parameters`, or `rope_theta` beside `rope_scaling`. A key that stands in several places
/// must have one value. Throws InputError.
RopeConfig read_rope(ConfigReader& read, std::int64_t max_positions);

}  // namespace sherd
