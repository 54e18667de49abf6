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
        return positive(key);
    }
    std::int64_t positive_or(const char* key, std::int64_t fallback) {
        if (has(key)) return positive(key);
        assumed_.push_back(fmt::format("{} = {}", key, fallback));
        return fallback;
    }
    double number_or(const char* key, double fallback) {
        if (!has(key)) {
            assumed_.push_back(fmt::format("{} = {:g}", key, fallback));
            return fallback;
        }
        return number(root_.at(key), key);
    }
    bool flag_or(const char* key, bool fallback) const {
        if (!has(key)) return fallback;
        if (!root_.at(key).is_boolean()) throw InputError("{}: key '{}' is {}, expected true or false", name_, key, root_.at(key).dump());
        return root_.at(key).get<bool>();
    }
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
    std::int64_t positive(const char* key) const {
        const json& value = root_.at(key);
        // 2^31 - 1 bounds every dimension: products of two stay within 64 bits
        const bool whole = value.is_number_integer() || (value.is_number_float() && value.get<double>() == std::floor(value.get<double>()));
        if (!whole || value.get<double>() < 1 || value.get<double>() > std::numeric_limits<std::int32_t>::max())
            throw InputError("{}: key '{}' is {}, expected a whole number of at least 1", name_, key, value.dump());
        return value.get<std::int64_t>();
    }
    const json& root_;
    const std::string& name_;
    std::vector<std::string>& assumed_;
};

}  // namespace sherd
