#pragma once
/// JSON texts that people and Python write: a BOM is skipped, NaN and Infinity are accepted as values and kept as null, duplicate keys are
/// errors, and every error names file, line, column and the token.
#include <nlohmann/json_fwd.hpp>

#include <string>
#include <string_view>

namespace sherd::io {

/// Parses `text`; `name` is the file for messages. Throws InputError "NAME:LINE:COLUMN: ...".
nlohmann::json parse_json(std::string_view text, const std::string& name);

}  // namespace sherd::io
