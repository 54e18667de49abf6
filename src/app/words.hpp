#pragma once
/// Lists of words in messages, and spelling help: which known name did the user mean?
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace sherd {

/// Optimal string alignment distance: insertions, deletions, replacements and swaps of neighbours, each costs 1.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate at the least distance, the first of equals; empty where there are no candidates.
/// Whether the letters of `shorter` come in `longer` in this order, beginning with the first of one of its words: "lr" of "learning_rate".
bool abbreviates(std::string_view shorter, std::string_view longer);
std::string nearest(std::string_view name, const std::vector<std::string>& candidates);

/// "a, b, c"
std::string joined(const std::vector<std::string>& words, std::string_view separator = ", ");

}  // namespace sherd
