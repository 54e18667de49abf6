#include "key_values.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace sherd::values {

namespace {
/// Whole text as a T, or the reason why not. from_chars knows no locale, no blanks and no leading plus.
template <class T>
std::errc read_whole(const std::string& text, T& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc()) return error;
    return end == text.data() + text.size() ? std::errc() : std::errc::invalid_argument;
}
}  // namespace

std::int64_t parse_integer(const std::string& text, const IntegerRule& rule) {
    if (!rule.word.empty() && text == rule.word) return rule.word_value;
    std::int64_t value = 0;
    if (read_whole(text, value) != std::errc() || value < rule.least) throw BadValue(fmt::format("expected {}", describe(rule)));
    if (value > rule.most) throw BadValue(fmt::format("too large; expected an integer from {} to {}", rule.least, rule.most));
    return value;
}

std::uint64_t parse_unsigned(const std::string& text) {
    std::uint64_t value = 0;
    if (read_whole(text, value) != std::errc()) throw BadValue("expected an integer from 0 to 18446744073709551615");
    return value;
}

double parse_number(const std::string& text, const NumberRule& rule) {
    double value = 0;
    const std::errc error = read_whole(text, value);
    const bool low = rule.open_least ? value <= rule.least : value < rule.least;
    const bool high = rule.open_most ? value >= rule.most : value > rule.most;
    if (error != std::errc() || !std::isfinite(value) || low || high) throw BadValue(fmt::format("expected {}", describe(rule)));
    return value;
}

bool parse_boolean(const std::string& text) {
    for (const char* word : {"true", "yes", "on", "1"})
        if (text == word) return true;
    for (const char* word : {"false", "no", "off", "0"})
        if (text == word) return false;
    throw BadValue("expected true or false (or yes/no, on/off, 1/0)");
}

std::optional<double> parse_duration(const std::string& text) {
    static const std::vector<std::pair<std::string, double>> units{{"min", 60}, {"s", 1}, {"h", 3600}};
    for (const auto& [unit, seconds] : units) {
        if (text.size() <= unit.size() || !text.ends_with(unit)) continue;
        double value = 0;
        if (read_whole(text.substr(0, text.size() - unit.size()), value) != std::errc()) return std::nullopt;
        const double product = value * seconds;
        if (!std::isfinite(product) || product <= 0) return std::nullopt;
        return product;
    }
    return std::nullopt;
}

namespace {
const std::vector<std::pair<std::string, std::uint64_t>>& byte_units() {
    static const std::vector<std::pair<std::string, std::uint64_t>> units{
        {"TiB", 1ull << 40},       {"GiB", 1ull << 30},   {"MiB", 1ull << 20}, {"KiB", 1ull << 10},
        {"TB", 1'000'000'000'000}, {"GB", 1'000'000'000}, {"MB", 1'000'000},   {"kB", 1'000}};
    return units;
}
}  // namespace

std::uint64_t parse_bytes(const std::string& text) {
    const auto end_of_number = std::min(text.find_first_not_of("0123456789."), text.size());
    const std::string unit = text.substr(std::min(text.find_first_not_of(' ', end_of_number), text.size()));
    std::uint64_t factor = unit.empty() ? 1 : 0;
    for (const auto& [name, bytes] : byte_units())
        if (name == unit) factor = bytes;
    double number = 0;
    const bool read = read_whole(text.substr(0, end_of_number), number) == std::errc();
    const double bytes = number * static_cast<double>(factor);
    if (!read || factor == 0 || !(bytes >= 1) || bytes > 1e18) throw BadValue("expected bytes, as 16000000000, 512MiB or 30GiB");
    return static_cast<std::uint64_t>(bytes);
}

std::string print_bytes(std::uint64_t bytes) {
    for (const auto& [name, unit] : byte_units())
        if (name[1] == 'i' && bytes % unit == 0) return fmt::format("{}{}", bytes / unit, name);
    return fmt::to_string(bytes);
}

std::string parse_text(const std::string& text) {
    if (text.empty()) throw BadValue("no value; leave the key out for its default");
    if (text.find_first_of(std::string("\n\r\0", 3)) != std::string::npos)
        throw BadValue("a line break or a zero byte, which a deck cannot hold");
    return text;
}

std::string describe(const IntegerRule& rule) {
    const std::string range = fmt::format("integer, {} or more", rule.least);
    return rule.word.empty() ? range : range + ", or " + rule.word;
}

std::string describe(const NumberRule& rule) {
    const std::string least = print_number(rule.least), most = print_number(rule.most);
    if (rule.most == std::numeric_limits<double>::max())
        return rule.open_least ? fmt::format("number above {}", least) : fmt::format("number, {} or more", least);
    return fmt::format("number from {}{} to {}{}", rule.open_least ? "above " : "", least, rule.open_most ? "below " : "", most);
}

std::string print_number(double value) {
    std::string text = fmt::format("{}", value);
    // 1e-05 -> 1e-5: as people write it
    if (const auto at = text.find('e'); at != std::string::npos) {
        const auto digits = text.find_first_of("0123456789", at);
        const auto first = std::min(text.find_first_not_of('0', digits), text.size() - 1);
        text.erase(digits, first - digits);
    }
    return text;
}

std::string print_duration(double seconds) {
    // a unit is taken only where its text reads back as the very same number
    for (const auto& [unit, length] : {std::pair<const char*, double>{"h", 3600}, {"min", 60}})
        if (std::fmod(seconds, length) == 0) return print_number(seconds / length) + unit;
    return print_number(seconds) + "s";
}

void refuse_word(const std::string& text, const std::vector<std::string>& words, const std::vector<std::string>& later) {
    if (std::find(later.begin(), later.end(), text) != later.end())
        throw BadValue(fmt::format("not in this version, which has {}", joined(words)));
    std::string message = fmt::format("expected one of {}", joined(words));
    if (!later.empty()) message += fmt::format(" ({}: not in this version)", joined(later));
    throw BadValue(message);
}

KeyValue only_default(const std::string& default_text, const std::string& later) {
    auto set = [=](Settings&, const std::string& text) {
        if (text != default_text)
            throw BadValue(fmt::format("not in this version, which takes only its default, {} (later: {})", default_text, later));
    };
    return {default_text, set, [=](const Settings&) { return default_text; }};
}

}  // namespace sherd::values
