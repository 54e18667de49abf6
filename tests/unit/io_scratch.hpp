#pragma once
/// A folder of its own for a test, and a check of an error's text.
#include "sherd/runtime/error.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace sherd::testing {

/// A fresh folder, removed at the end.
class Scratch {
  public:
    Scratch() {
        std::string pattern = (std::filesystem::temp_directory_path() / "sherd-io-XXXXXX").string();
        if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
        path_ = pattern;
    }
    ~Scratch() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
    const std::filesystem::path& path() const { return path_; }

  private:
    std::filesystem::path path_;
};

inline void write_bytes(const std::filesystem::path& path, std::string_view bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
}

/// Runs `action`; it must throw E, and the text must hold every one of `parts`.
template <class E = InputError, class Action, class... Parts>
void expect_error(Action action, const Parts&... parts) {
    try {
        action();
    } catch (const E& error) {
        for (const std::string_view part : {std::string_view(parts)...})
            EXPECT_NE(std::string_view(error.what()).find(part), std::string_view::npos) << "'" << part << "' is not in: " << error.what();
        return;
    } catch (const std::exception& error) {
        FAIL() << "another error: " << error.what();
    }
    FAIL() << "no error";
}

}  // namespace sherd::testing
