#pragma once
/// What import, export and inspect share: command lines of a few options, sizes for people, weights in pieces.
#include "sherd/io/weight_source.hpp"

#include <boost/program_options.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace sherd::app {

/// Parses `arguments`. --help prints `introduction` and the options, and returns nothing. Throws UsageError naming the option.
std::optional<boost::program_options::variables_map> parse_file_options(
    const std::vector<std::string>& arguments, const std::string& introduction, const boost::program_options::options_description& options,
    const boost::program_options::positional_options_description& positional);

/// The value of a required path option. Throws UsageError where it is absent or empty.
std::string required_path(const boost::program_options::variables_map& values, const std::string& name, const std::string& command);

/// Whether `inner` is `outer` or lies below it.
bool lies_in(const std::filesystem::path& outer, const std::filesystem::path& inner);

/// "1.3 MB": powers of 1000.
std::string human_bytes(std::uint64_t bytes);

/// "12 bf16, 5 fp32 tensors, 1.3 MB"
std::string dtype_summary(const std::vector<TensorInfo>& tensors);

/// Declares --dtype, for what import and export write.
void add_dtype_option(boost::program_options::options_description& options, const char* kept);

/// The source itself, or converted to the type that --dtype names. Throws UsageError for another name.
std::unique_ptr<WeightSource> as_requested(std::unique_ptr<WeightSource> source, const boost::program_options::variables_map& values);

/// Reads a tensor in pieces of at most 1 MiB, checks that every value is finite and hands the pieces on, in order. Throws InputError
/// naming tensor and index of a NaN or an infinity, and of a finite value that the tensor's type cannot hold.
void stream_tensor(const WeightSource& source, const TensorInfo& tensor,
                   const std::function<void(std::int64_t begin, std::int64_t count, const void* data)>& take);

}  // namespace sherd::app
