#pragma once
/// metrics.jsonl: one object a line, appended whole.
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace sherd {

/// Builds one line. Numbers that JSON cannot hold (NaN, infinity) become null.
class JsonLine {
  public:
    explicit JsonLine(std::string_view event);
    JsonLine& add(std::string_view name, double value);
    JsonLine& add(std::string_view name, std::int64_t value);
    JsonLine& add(std::string_view name, std::string_view value);
    JsonLine& add(std::string_view name, const char* value) { return add(name, std::string_view(value)); }
    JsonLine& add_true(std::string_view name);
    JsonLine& add_null(std::string_view name);
    std::string text() const { return text_ + "}"; }

  private:
    std::string text_;
};

/// The file of one run. Rank 0 only.
class MetricsFile {
  public:
    explicit MetricsFile(const std::filesystem::path& directory);
    /// Moves lines of steps after `step` (and a torn last line) to metrics.set-aside.jsonl, so that a resumed run leaves each step once.
    void set_aside_after(std::int64_t step);
    /// Appends with a single write. Throws InputError (full disk).
    void append(const JsonLine& line);

  private:
    std::filesystem::path path_, aside_;
};

}  // namespace sherd
