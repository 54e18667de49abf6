#include "sherd/io/json.hpp"

#include "sherd/runtime/error.hpp"

#include <nlohmann/json.hpp>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <utility>

namespace sherd::io {

namespace {

/// Recursive descent over RFC 8259, plus what Python's json module writes for NaN and the infinities.
class JsonParser {
  public:
    JsonParser(std::string_view text, const std::string& name) : text_(text), name_(name) {
        if (text_.starts_with("\xef\xbb\xbf")) start_ = at_ = 3;
    }

    nlohmann::json document() {
        nlohmann::json result = value(0);
        skip_space();
        if (at_ < text_.size()) fail(at_, "nothing more may follow the value");
        return result;
    }

  private:
    static constexpr int deepest = 200;

    [[noreturn]] void fail(std::size_t where, const std::string& what) const {
        std::size_t line = 1, line_start = start_;
        for (std::size_t i = start_; i < where && i < text_.size(); ++i)
            if (text_[i] == '\n') ++line, line_start = i + 1;
        throw InputError("{}:{}:{}: {}; found {}", name_, line, where - line_start + 1, what, token(where));
    }

    std::string token(std::size_t where) const {
        if (where >= text_.size()) return "the end of the file";
        std::size_t end = where + 1;
        const auto part_of_word = [](char c) {
            return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '.' || c == '+' ||
                   c == '-';
        };
        if (text_[where] == '"')
            while (end < text_.size() && end - where < 40 && text_[end - 1] != '\n' && (end == where + 1 || text_[end - 1] != '"')) ++end;
        else if (part_of_word(text_[where]))
            while (end < text_.size() && end - where < 40 && part_of_word(text_[end])) ++end;
        std::string result;
        for (const char c : text_.substr(where, end - where))
            result += static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f
                          ? fmt::format("\\x{:02x}", static_cast<unsigned char>(c))
                          : std::string(1, c);
        return "'" + result + "'";
    }

    void skip_space() {
        while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r')) ++at_;
    }
    bool take(std::string_view word) {
        if (text_.substr(at_, word.size()) != word) return false;
        at_ += word.size();
        return true;
    }
    void expect(char c, const char* what) {
        skip_space();
        if (at_ >= text_.size() || text_[at_] != c) fail(at_, what);
        ++at_;
    }
    bool next_is(char c) {
        skip_space();
        return at_ < text_.size() && text_[at_] == c;
    }

    nlohmann::json value(int depth) {
        if (depth > deepest) fail(at_, fmt::format("values are nested more than {} deep", deepest));
        skip_space();
        if (at_ >= text_.size()) fail(at_, "a value was expected");
        const char c = text_[at_];
        if (c == '{') return object(depth);
        if (c == '[') return array(depth);
        if (c == '"') return string();
        if (take("true")) return true;
        if (take("false")) return false;
        if (take("null") || take("NaN") || take("Infinity") || take("-Infinity")) return nullptr;
        if (c == '-' || (c >= '0' && c <= '9')) return number();
        fail(at_, "a value was expected");
    }

    nlohmann::json object(int depth) {
        nlohmann::json result = nlohmann::json::object();
        ++at_;
        if (next_is('}')) return ++at_, result;
        for (;;) {
            skip_space();
            const std::size_t where = at_;
            if (!next_is('"')) fail(where, "a name in double quotes was expected");
            std::string key = string();
            if (result.contains(key)) fail(where, fmt::format("the name '{}' stands here a second time", key));
            expect(':', "':' was expected after the name");
            result.emplace(std::move(key), value(depth + 1));
            if (next_is(',')) {
                ++at_;
                continue;
            }
            expect('}', "',' or '}' was expected");
            return result;
        }
    }

    nlohmann::json array(int depth) {
        nlohmann::json result = nlohmann::json::array();
        ++at_;
        if (next_is(']')) return ++at_, result;
        for (;;) {
            result.push_back(value(depth + 1));
            if (next_is(',')) {
                ++at_;
                continue;
            }
            expect(']', "',' or ']' was expected");
            return result;
        }
    }

    nlohmann::json number() {
        const std::size_t begin = at_;
        const auto digit = [this] { return at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; };
        const auto digits = [&] {
            if (!digit()) fail(begin, "a number was expected");
            while (digit()) ++at_;
        };
        bool whole = true;
        if (text_[at_] == '-') ++at_;
        if (digit() && text_[at_] == '0') {
            ++at_;
            if (digit()) fail(begin, "a number must not begin with 0");
        } else {
            digits();
        }
        if (at_ < text_.size() && text_[at_] == '.') whole = false, ++at_, digits();
        if (at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
            whole = false, ++at_;
            if (at_ < text_.size() && (text_[at_] == '+' || text_[at_] == '-')) ++at_;
            digits();
        }
        const char *first = text_.data() + begin, *last = text_.data() + at_;
        std::int64_t integer = 0;
        std::uint64_t natural = 0;
        if (whole && std::from_chars(first, last, integer).ec == std::errc()) return integer;
        if (whole && *first != '-' && std::from_chars(first, last, natural).ec == std::errc()) return natural;
        double real = 0;
        if (std::from_chars(first, last, real).ec != std::errc()) return nullptr;  // beyond double: an infinity to Python
        return real;
    }

    unsigned hex4() {
        unsigned code = 0;
        const std::size_t begin = at_;
        if (at_ + 4 > text_.size()) fail(begin, "four hexadecimal digits were expected");
        const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + at_ + 4, code, 16);
        if (error != std::errc() || end != text_.data() + at_ + 4) fail(begin, "four hexadecimal digits were expected");
        at_ += 4;
        return code;
    }

    static void append_utf8(std::string& out, unsigned code) {
        const auto add = [&out](unsigned byte) { out += static_cast<char>(byte); };
        if (code < 0x80) return add(code);
        if (code < 0x800) return add(0xc0 | (code >> 6)), add(0x80 | (code & 63));
        if (code < 0x10000) return add(0xe0 | (code >> 12)), add(0x80 | ((code >> 6) & 63)), add(0x80 | (code & 63));
        add(0xf0 | (code >> 18)), add(0x80 | ((code >> 12) & 63)), add(0x80 | ((code >> 6) & 63)), add(0x80 | (code & 63));
    }

    void escape(std::string& out) {
        const std::size_t where = at_ - 1;
        const char c = at_ < text_.size() ? text_[at_++] : '\0';
        constexpr std::string_view from = "\"\\/bfnrt", to = "\"\\/\b\f\n\r\t";
        if (const auto i = from.find(c); c != '\0' && i != std::string_view::npos) {
            out += to[i];
            return;
        }
        if (c != 'u') fail(where, "this is no escape of JSON");
        unsigned code = hex4();
        if (code >= 0xd800 && code < 0xdc00 && take("\\u")) {
            const unsigned low = hex4();
            if (low < 0xdc00 || low > 0xdfff) fail(where, "a surrogate pair was expected");
            code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        }
        if (code >= 0xd800 && code < 0xe000) fail(where, "half a surrogate pair names no character");
        append_utf8(out, code);
    }

    /// Length of the well-formed UTF-8 sequence at at_, 0 if there is none (Unicode, table 3-7).
    std::size_t utf8_length() const {
        const auto byte = [this](std::size_t i) { return at_ + i < text_.size() ? static_cast<unsigned char>(text_[at_ + i]) : 0u; };
        const auto tail = [&](std::size_t i) { return (byte(i) & 0xc0u) == 0x80u; };
        const unsigned b = byte(0);
        if (b >= 0xc2 && b < 0xe0) return tail(1) ? 2 : 0;
        if (b >= 0xe0 && b < 0xf0) {
            const bool second = b == 0xe0 ? byte(1) >= 0xa0 : b == 0xed ? byte(1) < 0xa0 : true;
            return second && tail(1) && tail(2) ? 3 : 0;
        }
        if (b >= 0xf0 && b < 0xf5) {
            const bool second = b == 0xf0 ? byte(1) >= 0x90 : b == 0xf4 ? byte(1) < 0x90 : true;
            return second && tail(1) && tail(2) && tail(3) ? 4 : 0;
        }
        return 0;
    }

    std::string string() {
        const std::size_t begin = at_++;
        std::string out;
        for (;;) {
            if (at_ >= text_.size()) fail(begin, "this string has no end");
            const auto c = static_cast<unsigned char>(text_[at_]);
            if (c == '"') return ++at_, out;
            if (c == '\\') {
                ++at_;
                escape(out);
            } else if (c < 0x20) {
                fail(at_, "a control character must be written as an escape inside a string");
            } else if (c < 0x80) {
                out += text_[at_++];
            } else {
                const std::size_t n = utf8_length();
                if (n == 0) fail(at_, "the text is not valid UTF-8 here");
                out.append(text_.substr(at_, n));
                at_ += n;
            }
        }
    }

    std::string_view text_;
    const std::string& name_;
    std::size_t at_ = 0, start_ = 0;
};

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& name) {
    return JsonParser(text, name).document();
}

}  // namespace sherd::io
