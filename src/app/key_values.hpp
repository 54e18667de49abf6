#pragma once
/// The types of deck values: strict parsing and canonical printing. Each maker takes a field as a lambda from Settings to the member,
/// generic in constness: `[](auto& s) -> auto& { return s.run.steps; }`.
#include "words.hpp"

#include "sherd/app/keys.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

namespace sherd::values {

/// A range of integers, and optionally one word that stands for a number outside it ("none", "auto").
struct IntegerRule {
    std::int64_t least = 0;
    std::int64_t most = 1'000'000'000'000;  // products of two such numbers are checked where they are made
    std::string word = {};
    std::int64_t word_value = 0;
};

/// A range of finite numbers.
struct NumberRule {
    double least = 0, most = std::numeric_limits<double>::max();
    bool open_least = false, open_most = false;  ///< whether the end itself is outside
};

std::int64_t parse_integer(const std::string& text, const IntegerRule& rule);
std::uint64_t parse_unsigned(const std::string& text);
double parse_number(const std::string& text, const NumberRule& rule);
bool parse_boolean(const std::string& text);
/// "90s", "30min", "2h" in seconds; nothing where the text is no duration at all.
std::optional<double> parse_duration(const std::string& text);
/// "30GiB", "512 MiB", "16000000000" in bytes, more than 0.
std::uint64_t parse_bytes(const std::string& text);
/// A text without line breaks, at least one character.
std::string parse_text(const std::string& text);

std::string describe(const IntegerRule& rule);
std::string describe(const NumberRule& rule);
/// Shortest text that reads back as the same double: "1e-5", "0.1", "20".
std::string print_number(double value);
std::string print_duration(double seconds);
/// In the largest unit that it is a whole number of: "30GiB".
std::string print_bytes(std::uint64_t bytes);

template <class Field>
KeyValue integer(Field field, IntegerRule rule) {
    return {describe(rule), [=](Settings& s, const std::string& text) { field(s) = parse_integer(text, rule); },
            [=](const Settings& s) { return !rule.word.empty() && field(s) == rule.word_value ? rule.word : fmt::to_string(field(s)); }};
}

template <class Field>
KeyValue number(Field field, NumberRule rule) {
    return {describe(rule), [=](Settings& s, const std::string& text) { field(s) = parse_number(text, rule); },
            [=](const Settings& s) { return print_number(field(s)); }};
}

template <class Field>
KeyValue boolean(Field field) {
    return {"true or false", [=](Settings& s, const std::string& text) { field(s) = parse_boolean(text); },
            [=](const Settings& s) { return std::string(field(s) ? "true" : "false"); }};
}

template <class Field>
KeyValue text(Field field, std::string allowed) {
    return {std::move(allowed), [=](Settings& s, const std::string& value) { field(s) = parse_text(value); },
            [=](const Settings& s) { return field(s); }};
}

/// Words that stand for values of a field; `later` are words of the documents whose feature this version lacks.
template <class T>
struct Choices {
    std::vector<std::pair<std::string, T>> words;
    std::vector<std::string> later = {};
};

/// Throws BadValue: a word that is known but not there yet, or one that nobody knows.
[[noreturn]] void refuse_word(const std::string& text, const std::vector<std::string>& words, const std::vector<std::string>& later);

template <class T, class Field>
KeyValue choice(Field field, Choices<T> choices) {
    std::vector<std::string> words;
    for (const auto& [word, value] : choices.words) words.push_back(word);
    auto set = [=](Settings& s, const std::string& text) {
        for (const auto& [word, value] : choices.words)
            if (word == text) {
                field(s) = value;
                return;
            }
        refuse_word(text, words, choices.later);
    };
    // of two words for one value the first is the canonical one
    auto get = [=](const Settings& s) {
        for (const auto& [word, value] : choices.words)
            if (value == field(s)) return word;
        return words.front();
    };
    return {joined(words), set, get};
}

/// A key whose feature this version lacks: only its default is taken. `later` says what will be allowed.
KeyValue only_default(const std::string& default_text, const std::string& later);

}  // namespace sherd::values
