#include "words.hpp"

#include <algorithm>

namespace sherd {

std::size_t edit_distance(std::string_view a, std::string_view b) {
    // three rows of the usual table: a swap looks two rows back
    std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
        row[0] = i;
        for (std::size_t j = 1; j <= b.size(); ++j) {
            row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
        }
        std::swap(before, last);
        std::swap(last, row);
    }
    return last[b.size()];
}

bool abbreviates(std::string_view shorter, std::string_view longer) {
    if (shorter.empty()) return false;
    for (std::size_t start = 0; start != std::string_view::npos; start = longer.find('_', start)) {
        start += start > 0 ? 1 : 0;
        if (longer[start] != shorter[0]) continue;
        std::size_t found = 0;
        for (std::size_t i = start; i < longer.size() && found < shorter.size(); ++i) found += longer[i] == shorter[found] ? 1 : 0;
        if (found == shorter.size()) return true;
    }
    return false;
}

std::string nearest(std::string_view name, const std::vector<std::string>& candidates) {
    const auto best = std::min_element(candidates.begin(), candidates.end(), [&](const std::string& a, const std::string& b) {
        return edit_distance(name, a) < edit_distance(name, b);
    });
    return best == candidates.end() ? std::string() : *best;
}

// not fmt::join: inlined by g++ 12 it sets off a false -Wstringop-overflow
std::string joined(const std::vector<std::string>& words, std::string_view separator) {
    std::string text;
    for (const std::string& word : words) {
        if (&word != &words.front()) text += separator;
        text += word;
    }
    return text;
}

}  // namespace sherd
