#include "sherd/app/deck_file.hpp"

#include "words.hpp"

#include "sherd/app/keys.hpp"
#include "sherd/runtime/error.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <string_view>

namespace sherd {

namespace {

constexpr std::size_t largest_deck = 1 << 20;  // bytes; more is some other file given by mistake
constexpr std::string_view blanks = " \t";

std::string_view trimmed(std::string_view text) {
    const auto first = text.find_first_not_of(blanks);
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

/// Where a comment starts in unquoted text that begins at `from`: a '#' after white space; the end of the line if there is none.
std::size_t comment_start(std::string_view line, std::size_t from) {
    for (std::size_t at = line.find('#', from); at != std::string_view::npos; at = line.find('#', at + 1))
        if (at > 0 && blanks.find(line[at - 1]) != std::string_view::npos) return at;
    return line.size();
}

/// One deck being read; the name and line stand in every message.
class Reader {
  public:
    Reader(const std::string& name, UnknownKeys unknown) : name_(name), unknown_(unknown) {}

    void take_line(std::string_view line) {
        ++line_;
        if (line.ends_with('\r')) line.remove_suffix(1);
        const std::string_view content = trimmed(line);
        if (content.empty() || content.front() == '#' || content.front() == ';') return;
        if (content.front() == '[')
            take_section(content);
        else
            take_entry(line);
    }

    std::vector<DeckEntry> entries;

  private:
    template <class... Values>
    [[noreturn]] void fail(fmt::format_string<Values...> format, Values&&... given) const {
        throw UsageError("{}:{}: {}", name_, line_, fmt::format(format, std::forward<Values>(given)...));
    }

    void take_section(std::string_view content) {
        const auto end = content.find(']');
        if (end == std::string_view::npos) fail("no ']' after the section's name in '{}'", content);
        const std::string_view rest = trimmed(content.substr(end + 1));
        if (!rest.empty() && rest.front() != '#' && rest.front() != ';') fail("unexpected '{}' after the section's name", rest);
        section_ = trimmed(content.substr(1, end - 1));
        if (unknown_ == UnknownKeys::taken || find_section(section_) != nullptr) return;
        std::vector<std::string> known;
        for (const Section& section : deck_sections()) known.push_back(section.name);
        fail("unknown section [{}]; the nearest known one is [{}]", section_, nearest(section_, known));
    }

    void take_entry(std::string_view line) {
        const auto equals = line.find('=');
        if (equals == std::string_view::npos) fail("expected 'key = value', a [section] or a comment, not '{}'", trimmed(line));
        DeckEntry entry{section_, std::string(trimmed(line.substr(0, equals))), {}, line_};
        if (entry.key.empty()) fail("no key before '='");
        if (section_.empty())
            fail("'{}' stands before the first [section]; the nearest known key is {}", entry.key, nearest_key(entry.key));
        check_known(entry);
        const auto [before, fresh] = line_of_.emplace(entry.full_name(), line_);
        if (!fresh) fail("{} is given twice: here and in line {}", entry.full_name(), before->second);
        entry.value = read_value(line, equals + 1);
        entries.push_back(std::move(entry));
    }

    void check_known(const DeckEntry& entry) const {
        if (unknown_ == UnknownKeys::taken) return;
        if (entry.section == "nccl") {
            if (!is_nccl_variable(entry.key)) fail("'{}' is no NCCL_* variable, and [nccl] takes nothing else", entry.key);
        } else if (find_key(entry.full_name()) == nullptr) {
            fail("unknown key {}; the nearest known one is {}", entry.full_name(), nearest_key(entry.full_name()));
        }
    }

    std::string read_value(std::string_view line, std::size_t from) const {
        const auto first = line.find_first_not_of(blanks, from);
        if (first == std::string_view::npos) return {};
        if (line[first] == '"' || line[first] == '\'') return read_quoted(line, first);
        const std::size_t end = comment_start(line, from);
        const std::string_view value = trimmed(line.substr(from, end - from));
        if (value.empty() && end < line.size())
            fail("no value: '#' after white space starts a comment; put a value that starts with '#' in quotes");
        // the '#' of  /tmp/a "b #c"  may be meant: better to ask than to cut a path without a word
        for (const char quote : {'"', '\''})
            if (std::count(value.begin(), value.end(), quote) % 2 == 1 && line.find(quote, end) != std::string_view::npos)
                fail("the '#' in column {} stands between quotes inside the value; put quotes around the whole value", end + 1);
        return std::string(value);
    }

    /// A quoted value; the quote itself is written twice inside it.
    std::string read_quoted(std::string_view line, std::size_t first) const {
        const char quote = line[first];
        std::string value;
        std::size_t at = first + 1;
        for (;; ++at) {
            if (at >= line.size()) fail("the quote {} in column {} is never closed", quote, first + 1);
            if (line[at] == quote && !line.substr(at + 1).starts_with(quote)) break;
            if (line[at] == quote) ++at;
            value += line[at];
        }
        const std::string_view rest = line.substr(at + 1);
        const bool comment = trimmed(rest).starts_with('#') && !rest.starts_with('#');
        if (!trimmed(rest).empty() && !comment)
            fail("unexpected '{}' after the closing quote; a quote inside quotes is written twice", trimmed(rest));
        return value;
    }

    const std::string& name_;
    const UnknownKeys unknown_;
    int line_ = 0;
    std::string section_;
    std::map<std::string, int> line_of_;
};

}  // namespace

std::vector<DeckEntry> parse_deck(const std::string& text, const std::string& name, UnknownKeys unknown) {
    std::string_view rest = text;
    if (rest.starts_with("\xFF\xFE") || rest.starts_with("\xFE\xFF")) throw UsageError("{}: is UTF-16; save the deck as UTF-8", name);
    if (rest.starts_with("\xEF\xBB\xBF")) rest.remove_prefix(3);
    if (rest.find('\0') != std::string_view::npos) throw UsageError("{}: is no text file; --config takes a deck, an INI file", name);
    Reader reader(name, unknown);
    while (!rest.empty()) {
        const auto end = std::min(rest.find('\n'), rest.size());
        reader.take_line(rest.substr(0, end));
        rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    return std::move(reader.entries);
}

std::vector<DeckEntry> read_deck(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw UsageError("{}: cannot open the deck: {}", path.string(), std::strerror(errno));
    std::string text(largest_deck + 1, '\0');
    errno = 0;
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    if (file.bad() || (errno != 0 && file.gcount() == 0))
        throw UsageError("{}: cannot read the deck: {}", path.string(), std::strerror(errno));
    text.resize(static_cast<std::size_t>(file.gcount()));
    if (text.size() > largest_deck)
        throw UsageError("{}: is larger than {} bytes, so no deck; --config takes an INI file", path.string(), largest_deck);
    return parse_deck(text, path.string());
}

std::string quoted_value(const std::string& value) {
    const std::string line = ' ' + value;  // as behind "key ="
    const bool plain = !value.empty() && trimmed(value) == value && value.front() != '"' && value.front() != '\'';
    if (plain && comment_start(line, 0) == line.size()) return value;
    if (value.find('"') == std::string::npos) return '"' + value + '"';
    if (value.find('\'') == std::string::npos) return '\'' + value + '\'';
    std::string text = "\"";
    for (const char c : value) text += c == '"' ? std::string("\"\"") : std::string(1, c);
    return text + '"';
}

}  // namespace sherd
