#pragma once
/// The job that the distributed tests run in. Any number of ranks, one included: a test must hold at every world size.
#include "sherd/comm/session.hpp"

namespace sherd::tests {

/// Made by main() before the first test.
const Session& session();

}  // namespace sherd::tests
