#include "train/metrics.hpp"

#include "sherd/io/files.hpp"
#include "sherd/runtime/error.hpp"
#include "sherd/runtime/log.hpp"

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

namespace sherd {

namespace fs = std::filesystem;

namespace {

void append_text(const fs::path& path, const std::string& text) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) throw InputError("{}: {}", path.string(), std::strerror(errno));
    const ssize_t written = ::write(fd, text.data(), text.size());
    const int error = errno;
    if (written >= 0 && static_cast<std::size_t>(written) != text.size()) {
        // half a line must not stay: what was there before is whole
        const off_t end = ::lseek(fd, 0, SEEK_END);
        if (end < written || ::ftruncate(fd, end - written) != 0)
            log::warning(fmt::format("{}: half a line stays at its end", path.string()));
    }
    ::close(fd);
    if (written < 0) throw InputError("{}: {}", path.string(), std::strerror(error));
    if (static_cast<std::size_t>(written) != text.size()) throw InputError("{}: no space left for a line", path.string());
}

/// Step of a whole line, or -1 for one that is no event or torn.
std::int64_t step_of(const std::string& line) {
    const auto object = nlohmann::json::parse(line, nullptr, false);
    if (!object.is_object() || !object.contains("step") || !object["step"].is_number_integer()) return -1;
    return object["step"].get<std::int64_t>();
}

}  // namespace

JsonLine::JsonLine(std::string_view event) : text_("{\"event\":" + nlohmann::json(event).dump()) {}
JsonLine& JsonLine::add(std::string_view name, double value) {
    if (!std::isfinite(value)) return add_null(name);
    // the shortest digits that read back as the same double
    text_ += fmt::format(",\"{}\":{}", name, value);
    return *this;
}
JsonLine& JsonLine::add(std::string_view name, std::int64_t value) {
    text_ += fmt::format(",\"{}\":{}", name, value);
    return *this;
}
JsonLine& JsonLine::add(std::string_view name, std::string_view value) {
    text_ += fmt::format(",\"{}\":{}", name, nlohmann::json(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    return *this;
}
JsonLine& JsonLine::add_true(std::string_view name) {
    text_ += fmt::format(",\"{}\":true", name);
    return *this;
}
JsonLine& JsonLine::add_null(std::string_view name) {
    text_ += fmt::format(",\"{}\":null", name);
    return *this;
}

MetricsFile::MetricsFile(const fs::path& directory) : path_(directory / "metrics.jsonl"), aside_(directory / "metrics.set-aside.jsonl") {}

void MetricsFile::set_aside_after(std::int64_t step) {
    std::error_code error;
    if (!fs::exists(path_, error)) return;
    const std::string text = io::read_text(path_);
    std::string kept, aside;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find('\n', at), text.size());
        const std::string line = text.substr(at, end - at);
        const std::int64_t of = step_of(line);
        (end < text.size() && of >= 0 && of <= step ? kept : aside) += line + "\n";
        at = end + 1;
    }
    if (aside.empty()) return;
    append_text(aside_, aside);
    io::write_text_atomically(path_, kept);
}

void MetricsFile::append(const JsonLine& line) {
    append_text(path_, line.text() + "\n");
}

}  // namespace sherd
