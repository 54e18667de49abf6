#include "file_options.hpp"

#include "sherd/runtime/error.hpp"
#include "sherd/runtime/log.hpp"
#include "sherd/runtime/signals.hpp"
#include "sherd/tensor/half.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <sstream>
#include <utility>

namespace sherd::app {

namespace po = boost::program_options;

std::optional<po::variables_map> parse_file_options(const std::vector<std::string>& arguments, const std::string& introduction,
                                                    const po::options_description& options,
                                                    const po::positional_options_description& positional) {
    po::variables_map values;
    try {
        // no guessing: an abbreviation that works today would be ambiguous when an option is added
        const int style = po::command_line_style::default_style & ~po::command_line_style::allow_guessing;
        po::store(po::command_line_parser(arguments).options(options).positional(positional).style(style).run(), values);
        po::notify(values);
    } catch (const po::error& e) {
        throw UsageError("{}; --help lists the options", e.what());
    }
    if (values.contains("help")) {
        std::ostringstream text;
        text << introduction << "\n\n" << options;
        log::line(text.str());
        return std::nullopt;
    }
    return values;
}

std::string required_path(const po::variables_map& values, const std::string& name, const std::string& command) {
    if (!values.contains(name) || values[name].as<std::string>().empty())
        throw UsageError("{} needs --{} PATH; 'sherd {} --help' lists the options", command, name, command);
    return values[name].as<std::string>();
}

bool lies_in(const std::filesystem::path& outer, const std::filesystem::path& inner) {
    namespace fs = std::filesystem;
    std::error_code error;
    const fs::path relative = fs::weakly_canonical(inner, error).lexically_relative(fs::weakly_canonical(outer, error));
    return !relative.empty() && *relative.begin() != "..";
}

std::string human_bytes(std::uint64_t bytes) {
    constexpr const char* units[] = {"kB", "MB", "GB", "TB"};
    if (bytes < 1000) return fmt::format("{} bytes", bytes);
    double value = static_cast<double>(bytes) / 1000;
    std::size_t unit = 0;
    while (value >= 999.95 && unit < 3) value /= 1000, ++unit;
    return fmt::format("{:.1f} {}", value, units[unit]);
}

std::string dtype_summary(const std::vector<TensorInfo>& tensors) {
    std::map<std::string, std::size_t> count;
    std::uint64_t bytes = 0;
    for (const TensorInfo& tensor : tensors) {
        ++count[std::string(name_of(tensor.dtype))];
        bytes += tensor.bytes();
    }
    std::string text;
    for (const auto& [name, n] : count) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", n, name);
    return fmt::format("{} tensors, {}", text.empty() ? "0" : text, human_bytes(bytes));
}

namespace {
/// Index of the first value whose exponent bits are all ones, or `count`.
template <class Bits>
std::int64_t first_non_finite(const unsigned char* data, std::int64_t count, Bits exponent) {
    const auto is_bad = [&](std::int64_t i) {
        Bits bits;
        std::memcpy(&bits, data + static_cast<std::size_t>(i) * sizeof bits, sizeof bits);
        return (bits & exponent) == exponent;
    };
    constexpr std::int64_t block = 4096;  // whole blocks first: without an early end the loop becomes vector instructions
    std::int64_t begin = 0;
    for (; begin + block <= count; begin += block) {
        Bits bad = 0;
        for (std::int64_t i = begin; i < begin + block; ++i) bad |= static_cast<Bits>(is_bad(i));
        if (bad != 0) break;
    }
    while (begin < count && !is_bad(begin)) ++begin;
    return begin;
}

std::int64_t first_non_finite(DType dtype, const unsigned char* data, std::int64_t count) {
    switch (dtype) {
        case DType::f32:
            return first_non_finite<std::uint32_t>(data, count, 0x7f800000u);
        case DType::bf16:
            return first_non_finite<std::uint16_t>(data, count, 0x7f80u);
        case DType::f16:
            return first_non_finite<std::uint16_t>(data, count, 0x7c00u);
        default:
            return count;  // integers and fp64 are refused as weights before anything is read
    }
}

/// "[12, 3]": the place of a flat index.
std::string place(const std::vector<std::int64_t>& shape, std::int64_t flat) {
    std::vector<std::int64_t> at(shape.size());
    for (std::size_t d = shape.size(); d-- > 0;) {
        at[d] = flat % shape[d];
        flat /= shape[d];
    }
    return to_string(at);
}

/// Why a value that reads as not finite cannot be written.
std::string why_not(const WeightSource& source, const TensorInfo& tensor, std::int64_t flat) {
    float value = 0;
    source.read_float(tensor, flat, 1, &value);
    const std::string where = fmt::format("{}: element {} (flat index {}) is", source.describe(tensor), place(tensor.shape, flat), flat);
    if (std::isfinite(value))
        return fmt::format("{} {:g}, which {} cannot hold; choose another type with --dtype", where, value, name_of(tensor.dtype));
    return fmt::format("{} {}; every weight must be finite", where, std::isnan(value) ? "NaN" : value > 0 ? "infinity" : "-infinity");
}
}  // namespace

void add_dtype_option(po::options_description& options, const char* kept) {
    options.add_options()("dtype", po::value<std::string>(),
                          fmt::format("fp32, bf16 or fp16: convert every tensor, rounding to nearest even; without it {}", kept).c_str());
}

std::unique_ptr<WeightSource> as_requested(std::unique_ptr<WeightSource> source, const po::variables_map& values) {
    if (!values.contains("dtype")) return source;
    const auto& name = values["dtype"].as<std::string>();
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
        if (name_of(dtype) == name) return converted(std::move(source), dtype);
    throw UsageError("--dtype={} is no type of weights; known are fp32, bf16 and fp16", name);
}

void stream_tensor(const WeightSource& source, const TensorInfo& tensor,
                   const std::function<void(std::int64_t, std::int64_t, const void*)>& take) {
    constexpr std::uint64_t piece_bytes = 1u << 20;  // stays in the cache between reading, checking and writing
    const std::int64_t elements = tensor.elements();
    const auto piece = static_cast<std::int64_t>(piece_bytes / size_of(tensor.dtype));
    std::vector<unsigned char> buffer(std::min<std::uint64_t>(piece_bytes, tensor.bytes()));
    for (std::int64_t begin = 0; begin < elements; begin += piece) {
        stop_if_interrupted();
        const std::int64_t count = std::min(piece, elements - begin);
        source.read(tensor, begin, count, buffer.data());
        if (const std::int64_t bad = first_non_finite(tensor.dtype, buffer.data(), count); bad < count)
            throw InputError(why_not(source, tensor, begin + bad));
        take(begin, count, buffer.data());
    }
}

}  // namespace sherd::app
