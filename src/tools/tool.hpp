#pragma once
/// What the small tools share: arguments, errors, and the attributes of a token file.
#include "sherd/io/hdf5.hpp"
#include "sherd/runtime/error.hpp"
#include "sherd/runtime/log.hpp"

#include <charconv>
#include <cstdint>
#include <exception>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace sherd::tools {

/// Arguments without the program's name; help and wrong counts are the usage line. Returns the exit code (docs/exit-codes.md).
template <class Function>
int run(int argc, char** argv, std::string_view usage, std::size_t least, std::size_t most, Function body) {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    if (!arguments.empty() && (arguments[0] == "--help" || arguments[0] == "-h")) {
        log::line(std::string(usage));
        return 0;
    }
    try {
        if (arguments.size() < least || arguments.size() > most) throw UsageError("usage: {}", usage);
        body(arguments);
        return 0;
    } catch (const Error& error) {
        log::error(error.what());
        return static_cast<int>(error.exit_code());
    } catch (const std::exception& error) {
        log::error(error.what());
        return static_cast<int>(ExitCode::environment);
    }
}

/// Throws UsageError naming the argument unless it is a whole number in [least, most].
inline std::int64_t whole_number(std::string_view name, std::string_view text, std::int64_t least,
                                 std::int64_t most = std::numeric_limits<std::int64_t>::max()) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size() || value < least || value > most)
        throw UsageError("{} is '{}': expected a whole number from {} to {}", name, text, least, most);
    return value;
}

/// Token ids are int32 in the program.
constexpr std::int64_t largest_vocabulary = std::numeric_limits<std::int32_t>::max();

/// Type of tokens below `vocabulary`.
inline DType token_dtype(std::int64_t vocabulary) {
    return vocabulary <= 65536 ? DType::u16 : DType::u32;
}

inline void write_token_attributes(io::HdfFile& file, std::int64_t vocabulary, const std::string& tokenizer) {
    file.set_attribute("/", "sherd.kind", std::string("tokens"));
    file.set_attribute("/", "sherd.version", std::int64_t{1});
    file.set_attribute("/", "vocab_size", vocabulary);
    file.set_attribute("/", "tokenizer", tokenizer);
}

}  // namespace sherd::tools
