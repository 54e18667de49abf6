#pragma once
#include <string>

namespace sherd {

/// What `sherd --version` prints: version, compiler, libraries, one a line.
std::string version_text();

}  // namespace sherd
