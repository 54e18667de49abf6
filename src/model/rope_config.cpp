#include "model/rope_config.hpp"

#include <algorithm>
#include <numbers>

namespace sherd {

namespace {

/// All rotary keys of a config in one object; `type` becomes `rope_type`.
json gather_keys(const ConfigReader& read) {
    json all = json::object();
    const auto take = [&](const std::string& key, const json& value, const std::string& place) {
        if (value.is_null()) return;
        if (all.contains(key) && all.at(key) != value)
            throw InputError("{}: {} is given twice, as {} and, in {}, as {}", read.name(), key, all.at(key).dump(), place, value.dump());
        all[key] = value;
    };
    for (const char* place : {"rope_parameters", "rope_scaling"}) {
        if (!read.has(place)) continue;
        const json& rope = read.root().at(place);
        if (!rope.is_object()) throw InputError("{}: key '{}' is {}, expected an object", read.name(), place, rope.dump());
        for (const auto& [key, value] : rope.items()) {
            if (value.is_object())
                throw InputError("{}: {}.{}: rotary settings by kind of layer are not supported", read.name(), place, key);
            take(key == "type" ? "rope_type" : key, value, place);
        }
    }
    for (const char* key : {"rope_theta", "partial_rotary_factor"})
        if (read.has(key)) take(key, read.root().at(key), "the top level");
    // transformers gives the top level priority here
    if (read.has("original_max_position_embeddings"))
        all["original_max_position_embeddings"] = read.root().at("original_max_position_embeddings");
    return all;
}

/// Numbers of the rotary keys, checked to be above 0.
class RopeReader {
  public:
    RopeReader(const json& keys, ConfigReader& read, std::string type) : keys_(keys), read_(read), type_(std::move(type)) {}
    bool has(const char* key) const { return keys_.contains(key); }
    double needed(const char* key) const {
        if (!has(key)) throw InputError("{}: rope_type '{}' needs the key '{}'", read_.name(), type_, key);
        return positive(key);
    }
    double number_or(const char* key, double fallback) const { return has(key) ? positive(key) : fallback; }
    double assumed(const char* key, double fallback) {
        if (!has(key)) read_.assume(key, fmt::format("{:g}", fallback));
        return number_or(key, fallback);
    }

  private:
    double positive(const char* key) const {
        const double value = read_.number(keys_.at(key), key);
        if (!(value > 0) || !std::isfinite(value))
            throw InputError("{}: '{}' is {}, expected a number above 0", read_.name(), key, keys_.at(key).dump());
        return value;
    }
    const json& keys_;
    ConfigReader& read_;
    std::string type_;
};

/// Factor of cosine and sine (Peng et al. 2023, section 3.4).
double yarn_attention_factor(const RopeReader& rope, double factor) {
    if (rope.has("attention_factor")) return rope.needed("attention_factor");
    const auto scale = [&](double weight) { return factor <= 1 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0; };
    if (rope.has("mscale") && rope.has("mscale_all_dim")) return scale(rope.needed("mscale")) / scale(rope.needed("mscale_all_dim"));
    return scale(1.0);
}

}  // namespace

RopeConfig read_rope(ConfigReader& read, std::int64_t max_positions) {
    const json keys = gather_keys(read);
    const json type_value = keys.value("rope_type", json("default"));
    const std::string type = type_value.is_string() ? type_value.get<std::string>() : type_value.dump();
    RopeReader rope(keys, read, type);
    RopeConfig c;
    c.theta = rope.assumed("rope_theta", 10000.0);
    if (rope.number_or("partial_rotary_factor", 1) != 1)
        throw InputError("{}: partial_rotary_factor = {} is not supported; supported: 1", read.name(),
                         keys.at("partial_rotary_factor").dump());
    if (type == "default") return c;
    if (type == "linear") {
        c.type = RopeConfig::Type::linear;
        c.factor = rope.needed("factor");
        return c;
    }
    if (type != "llama3" && type != "yarn")
        throw InputError("{}: rope_type '{}' is not supported; supported: default, linear, llama3, yarn", read.name(), type);
    c.original_positions = rope.assumed("original_max_position_embeddings", static_cast<double>(max_positions));
    if (type == "llama3") {
        c.type = RopeConfig::Type::llama3;
        c.factor = rope.needed("factor");
        c.low_freq_factor = rope.needed("low_freq_factor");
        c.high_freq_factor = rope.needed("high_freq_factor");
        if (c.high_freq_factor <= c.low_freq_factor)
            throw InputError("{}: high_freq_factor = {} must be above low_freq_factor = {}", read.name(), c.high_freq_factor,
                             c.low_freq_factor);
        return c;
    }
    c.type = RopeConfig::Type::yarn;
    c.factor = rope.number_or("factor", static_cast<double>(max_positions) / c.original_positions);
    c.beta_fast = rope.number_or("beta_fast", 32);
    c.beta_slow = rope.number_or("beta_slow", 1);
    c.attention_factor = yarn_attention_factor(rope, c.factor);
    if (keys.contains("truncate")) {
        if (!keys.at("truncate").is_boolean())
            throw InputError("{}: 'truncate' is {}, expected true or false", read.name(), keys.at("truncate").dump());
        c.truncate = keys.at("truncate").get<bool>();
    }
    return c;
}

namespace {

/// Frequencies whose wave is longer than the original context are divided, short ones kept, those between blended.
double llama3_frequency(const RopeConfig& c, double frequency) {
    const double wave = 2 * std::numbers::pi / frequency;
    if (wave < c.original_positions / c.high_freq_factor) return frequency;
    if (wave > c.original_positions / c.low_freq_factor) return frequency / c.factor;
    const double smooth = (c.original_positions / wave - c.low_freq_factor) / (c.high_freq_factor - c.low_freq_factor);
    return (1 - smooth) * frequency / c.factor + smooth * frequency;
}

/// Pairs that turn fast are kept, slow ones divided, with a ramp between the pairs that turn beta_fast and beta_slow times.
void yarn(const RopeConfig& c, std::int64_t head_dim, std::vector<double>& frequencies) {
    const auto d = static_cast<double>(head_dim);
    const auto pair_that_turns = [&](double times) {
        return d * std::log(c.original_positions / (times * 2 * std::numbers::pi)) / (2 * std::log(c.theta));
    };
    double low = pair_that_turns(c.beta_fast), high = pair_that_turns(c.beta_slow);
    if (c.truncate) {
        low = std::floor(low);
        high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, d - 1);
    if (low == high) high += 0.001;
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
        const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
        frequencies[i] = frequencies[i] / c.factor * ramp + frequencies[i] * (1 - ramp);
    }
}

}  // namespace

std::vector<double> rotary_frequencies(const RopeConfig& c, std::int64_t head_dim) {
    std::vector<double> frequencies;
    for (std::int64_t i = 0; i < head_dim / 2; ++i) {
        const double f = std::pow(c.theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
        frequencies.push_back(c.type == RopeConfig::Type::linear   ? f / c.factor
                              : c.type == RopeConfig::Type::llama3 ? llama3_frequency(c, f)
                                                                   : f);
    }
    if (c.type == RopeConfig::Type::yarn) yarn(c, head_dim, frequencies);
    return frequencies;
}

}  // namespace sherd
