#include "hugging_face_writer.hpp"

#include "file_options.hpp"

#include "sherd/io/files.hpp"
#include "sherd/io/safetensors.hpp"
#include "sherd/runtime/error.hpp"
#include "sherd/runtime/log.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <system_error>

namespace sherd::app {

namespace fs = std::filesystem;

std::uint64_t parse_size(const std::string& text) {
    double number = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, number);
    std::string unit;
    for (const char* c = rest; c != end; ++c)
        if (*c != ' ') unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
    constexpr std::string_view letters = "kmgt";
    double factor = unit.empty() || unit == "b" ? 1 : 0;
    for (std::size_t i = 0; i < letters.size(); ++i) {
        if (unit == std::string(1, letters[i]) + "b") factor = std::pow(1000.0, static_cast<double>(i + 1));
        if (unit == std::string(1, letters[i]) + "ib") factor = std::pow(1024.0, static_cast<double>(i + 1));
    }
    const double bytes = number * factor;
    if (error != std::errc() || !(bytes >= 1) || bytes > 9e18)
        throw UsageError("'{}' is no size; write for example 5GB (1000^3 bytes), 5GiB (1024^3 bytes) or a number of bytes", text);
    return static_cast<std::uint64_t>(bytes);
}

std::vector<std::vector<TensorInfo>> cut_into_shards(const std::vector<TensorInfo>& tensors, std::uint64_t limit) {
    std::vector<std::vector<TensorInfo>> shards;
    std::uint64_t room = 0;
    for (const TensorInfo& tensor : tensors) {
        if (shards.empty() || tensor.bytes() > room) {
            shards.emplace_back();
            room = limit;
        }
        shards.back().push_back(tensor);
        room -= std::min(room, tensor.bytes());
    }
    return shards;
}

namespace {
/// The reference writer's order within a file, wider types first, then names: a single file comes out as transformers writes it.
void sort_like_reference(std::vector<TensorInfo>& tensors) {
    const auto place = [](DType type) { return type == DType::f32 ? 0 : type == DType::bf16 ? 1 : 2; };
    std::sort(tensors.begin(), tensors.end(), [&](const TensorInfo& a, const TensorInfo& b) {
        return place(a.dtype) != place(b.dtype) ? place(a.dtype) < place(b.dtype) : a.name < b.name;
    });
}

void write_shard(const WeightSource& source, const std::vector<TensorInfo>& tensors, const fs::path& path) {
    io::SafetensorsWriter writer(path, tensors);
    for (const TensorInfo& tensor : tensors)
        stream_tensor(source, tensor, [&](std::int64_t, std::int64_t count, const void* data) {
            writer.write(data, static_cast<std::uint64_t>(count) * size_of(tensor.dtype));
        });
    writer.close();
}

std::size_t write_weights(const WeightSource& source, const std::vector<TensorInfo>& tensors, std::uint64_t limit, const fs::path& folder) {
    auto shards = cut_into_shards(tensors, limit);
    for (auto& shard : shards) sort_like_reference(shard);
    if (shards.size() == 1) {
        write_shard(source, shards[0], folder / "model.safetensors");
        return 1;
    }
    nlohmann::json map;
    std::uint64_t bytes = 0;
    std::int64_t elements = 0;
    for (std::size_t i = 0; i < shards.size(); ++i) {
        const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
        write_shard(source, shards[i], folder / name);
        log::progress(fmt::format("{} of {} files", i + 1, shards.size()));
        for (const TensorInfo& tensor : shards[i]) {
            map[tensor.name] = name;
            bytes += tensor.bytes();
            elements += tensor.elements();
        }
    }
    const nlohmann::json index = {{"metadata", {{"total_parameters", elements}, {"total_size", bytes}}}, {"weight_map", map}};
    io::write_text_atomically(folder / "model.safetensors.index.json", index.dump(2) + "\n");
    return shards.size();
}

/// Whether a name taken from a file may become a file of the folder.
bool is_safe_name(const std::string& name) {
    return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos && name != "config.json" &&
           !name.ends_with(".safetensors") && !name.ends_with(".safetensors.index.json");
}

void write_files(const WeightSource& source, const fs::path& folder) {
    for (const std::string& name : source.file_names()) {
        if (!is_safe_name(name)) {
            log::notice(fmt::format("'{}' carries a file '{}', which would be mistaken for a part of the model; it is left out",
                                    source.path(), name));
            continue;
        }
        std::error_code error;
        const bool of_people = name.starts_with("README") || name.starts_with("LICENSE") || name.starts_with("NOTICE");
        if (of_people && fs::exists(folder / name, error)) continue;
        if (fs::is_directory(folder / name, error))
            throw InputError("the model carries a file '{}', but the target holds a folder of that name; move it away", name);
        const std::vector<std::uint8_t> bytes = source.file(name);
        io::write_text_atomically(folder / name, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    }
}
}  // namespace

std::size_t write_hugging_face_folder(const WeightSource& source, const std::vector<TensorInfo>& tensors, std::uint64_t shard_limit,
                                      const fs::path& folder) {
    const std::size_t shards = write_weights(source, tensors, shard_limit, folder);
    write_files(source, folder);
    io::write_text_atomically(folder / "config.json", source.config());
    return shards;
}

}  // namespace sherd::app
