#pragma once
/// Typed access to config.json.
#include "sherd/runtime/error.hpp"

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace sherd {

using nlohmann::json;

/// Names the file and the key in every error, and notes each default taken.
class ConfigReader {
  public:
    ConfigReader(const json& root, const std::string& name, std::vector<std::string>& assumed)
        : root_(root), name_(name), assumed_(assumed) {}

    bool has(const char* key) const { return root_.contains(key) && !root_.at(key).is_null(); }

    /// A positive integer that a model cannot do without.
    std::int64_t needed(const char* key) const {
        if (!has(key)) throw InputError("{}: key '{}' is missing; a decoder cannot be built without it", name_, key);
        return whole(key, 1);
    }
    std::int64_t positive_or(const char* key, std::int64_t fallback) { return at_least(1, key, fallback); }
    /// A whole number that may be 0.
    std::int64_t count_or(const char* key, std::int64_t fallback) { return at_least(0, key, fallback); }
    double number_or(const char* key, double fallback) {
        if (!has(key)) {
            assume(key, fmt::format("{:g}", fallback));
            return fallback;
        }
        return number(root_.at(key), key);
    }
    bool flag_or(const char* key, bool fallback) {
        if (!has(key)) assume(key, fallback ? "true" : "false");
        return has(key) ? flag(key) : fallback;
    }
    /// Whether the key is there and true: for keys that a family does not have, so that their absence is nothing to tell.
    bool is_true(const char* key) const { return has(key) && flag(key); }
    std::string text_or(const char* key, const std::string& fallback) const {
        if (!has(key)) return fallback;
        if (!root_.at(key).is_string()) throw InputError("{}: key '{}' is {}, expected a string", name_, key, root_.at(key).dump());
        return root_.at(key).get<std::string>();
    }
    double number(const json& value, const std::string& key) const {
        if (!value.is_number()) throw InputError("{}: key '{}' is {}, expected a number", name_, key, value.dump());
        return value.get<double>();
    }

    const json& root() const noexcept { return root_; }
    const std::string& name() const noexcept { return name_; }
    void assume(const std::string& key, const std::string& value) { assumed_.push_back(key + " = " + value); }

  private:
    std::int64_t at_least(std::int64_t least, const char* key, std::int64_t fallback) {
        if (has(key)) return whole(key, least);
        assume(key, std::to_string(fallback));
        return fallback;
    }
    bool flag(const char* key) const {
        if (!root_.at(key).is_boolean()) throw InputError("{}: key '{}' is {}, expected true or false", name_, key, root_.at(key).dump());
        return root_.at(key).get<bool>();
    }
    std::int64_t whole(const char* key, std::int64_t least) const {
        const json& value = root_.at(key);
        // 2^31 - 1 bounds every dimension: products of two stay within 64 bits
        const bool integral =
            value.is_number_integer() || (value.is_number_float() && value.get<double>() == std::floor(value.get<double>()));
        if (!integral || value.get<double>() < static_cast<double>(least) || value.get<double>() > std::numeric_limits<std::int32_t>::max())
            throw InputError("{}: key '{}' is {}, expected a whole number of at least {}", name_, key, value.dump(), least);
        return value.get<std::int64_t>();
    }
    const json& root_;
    const std::string& name_;
    std::vector<std::string>& assumed_;
};

}  // namespace sherd
