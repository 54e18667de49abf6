#include "io/hugging_face_index.hpp"

#include "sherd/io/files.hpp"
#include "sherd/io/json.hpp"
#include "sherd/io/weight_source.hpp"
#include "sherd/runtime/error.hpp"
#include "sherd/runtime/log.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>

namespace sherd {

namespace fs = std::filesystem;

namespace {
constexpr const char* dequantize = "quantized folders must be dequantized first (load the model with transformers and save it as bfloat16)";

/// Files that a reader of the exported folder needs or that its licence asks for.
bool rides_along(const std::string& name) {
    constexpr std::string_view prefixes[] = {"tokenizer", "chat_template", "vocab", "merges", "README", "LICENSE", "NOTICE", "USE_POLICY"};
    constexpr std::string_view whole[] = {"generation_config.json", "special_tokens_map.json", "added_tokens.json"};
    if (name.ends_with(".safetensors") || name.ends_with(".bin")) return false;
    return std::any_of(std::begin(prefixes), std::end(prefixes), [&](auto p) { return name.starts_with(p); }) ||
           std::find(std::begin(whole), std::end(whole), name) != std::end(whole) || name.ends_with(".model");
}

/// Names that quantization tools put beside or in place of weights: GPTQ, AWQ, bitsandbytes, FP8, compressed-tensors.
bool belongs_to_quantization(std::string_view name) {
    constexpr std::string_view endings[] = {
        ".weight_scale", ".weight_scale_inv", ".weight_scale_2", ".input_scale",       ".qweight", ".qzeros",    ".scales",       ".g_idx",
        ".SCB",          ".weight_packed",    ".weight_shape",   ".weight_zero_point", ".absmax",  ".quant_map", ".nested_absmax"};
    return std::any_of(std::begin(endings), std::end(endings), [&](auto e) { return name.ends_with(e); }) ||
           name.find(".quant_state.") != std::string_view::npos;
}

struct FolderConfig {
    std::string text;
    bool tied = false;
};

FolderConfig read_config(const fs::path& folder) {
    const fs::path path = folder / "config.json";
    std::error_code error;
    if (!fs::exists(path, error)) throw InputError("'{}' has no config.json; expected a Hugging Face folder", folder.string());
    FolderConfig config{io::read_text(path), false};
    const nlohmann::json json = io::parse_json(config.text, path.string());
    if (!json.is_object()) throw InputError("'{}' is no JSON object", path.string());
    if (const auto found = json.find("quantization_config"); found != json.end() && !found->is_null())
        throw InputError("'{}' has a 'quantization_config': {}; if the weights are plain already, remove that entry from config.json",
                         path.string(), dequantize);
    if (const auto found = json.find("tie_word_embeddings"); found != json.end() && found->is_boolean()) config.tied = found->get<bool>();
    return config;
}

class HuggingFaceFolder final : public WeightSource {
  public:
    explicit HuggingFaceFolder(const fs::path& folder) : folder_(folder) {
        std::error_code error;
        if (!fs::is_directory(folder, error)) throw InputError("'{}' is no folder; expected a Hugging Face folder", folder.string());
        FolderConfig config = read_config(folder);
        config_ = std::move(config.text);
        content_ = io::read_folder(folder, config.tied);
        const std::string prefix = wrapper_prefix();
        if (!prefix.empty())
            log::notice(
                fmt::format("'{}': every tensor's name begins with '{}', left by a training wrapper; it is stripped", path(), prefix));
        const bool drop_head = config.tied && has(prefix + "lm_head.weight") && has(prefix + "model.embed_tokens.weight");
        if (drop_head)
            log::notice(fmt::format("'{}': the model is tied; its lm_head.weight is not used, model.embed_tokens.weight is", path()));
        std::size_t rotary = 0;
        for (const auto& entry : content_.entries) {
            TensorInfo info = *content_.files[entry.file].find(entry.name);
            check_plain(info, content_.files[entry.file].path());
            info.name = entry.name.substr(prefix.size());
            if (info.name.ends_with(".rotary_emb.inv_freq")) {
                ++rotary;
                continue;
            }
            if (drop_head && info.name == "lm_head.weight") continue;
            places_.emplace(info.name, entry);
            tensors_.push_back(std::move(info));
        }
        if (rotary > 0)
            log::notice(fmt::format(
                "'{}': {} stored rotary frequencies (*.rotary_emb.inv_freq) are not used; config.json says what they are", path(), rotary));
        check_dtypes();
    }

    std::string path() const override { return folder_.string(); }
    const std::string& config() const override { return config_; }
    const std::vector<TensorInfo>& tensors() const override { return tensors_; }

    void read(const TensorInfo& tensor, std::int64_t begin, std::int64_t count, void* out) const override {
        const auto found = places_.find(tensor.name);
        if (found == places_.end()) throw InputError("'{}' holds no tensor '{}'", path(), tensor.name);
        const io::SafetensorsFile& file = content_.files[found->second.file];
        file.read(*file.find(found->second.name), begin, count, out);
    }

    std::vector<std::string> file_names() const override {
        std::vector<std::string> names;
        std::error_code error;
        for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error))
            if (const std::string name = it->path().filename().string(); rides_along(name) && fs::is_regular_file(it->path()))
                names.push_back(name);
        if (error) throw InputError("cannot list the folder '{}': {}", path(), error.message());
        std::sort(names.begin(), names.end());
        return names;
    }

    std::vector<std::uint8_t> file(const std::string& name) const override {
        const std::string text = io::read_text(folder_ / name);
        return {text.begin(), text.end()};
    }

    std::string describe(const TensorInfo& tensor) const override {
        const auto found = places_.find(tensor.name);
        if (found == places_.end()) return fmt::format("folder '{}', tensor '{}'", path(), tensor.name);
        return fmt::format("file '{}', tensor '{}'", content_.files[found->second.file].path().string(), found->second.name);
    }

  private:
    bool has(const std::string& name) const {
        return std::any_of(content_.entries.begin(), content_.entries.end(), [&](const auto& e) { return e.name == name; });
    }

    /// The run of "module." and "_orig_mod." that begins every name: DistributedDataParallel and torch.compile wrap a model in them.
    std::string wrapper_prefix() const {
        std::string prefix;
        for (bool grown = true; grown && !content_.entries.empty();) {
            grown = false;
            for (const char* wrapper : {"_orig_mod.", "module."}) {
                const std::string longer = prefix + wrapper;
                if (!std::all_of(content_.entries.begin(), content_.entries.end(),
                                 [&](const auto& e) { return e.name.starts_with(longer); }))
                    continue;
                prefix = longer;
                grown = true;
            }
        }
        return prefix;
    }

    static void check_plain(const TensorInfo& info, const fs::path& file) {
        if (belongs_to_quantization(info.name))
            throw InputError("file '{}', tensor '{}': it belongs to quantized weights; {}", file.string(), info.name, dequantize);
        if (info.dtype == DType::f8_e4m3 || info.dtype == DType::f8_e5m2)
            throw InputError("file '{}', tensor '{}': its type is {}; {}", file.string(), info.name, name_of(info.dtype), dequantize);
    }

    void check_dtypes() const {
        for (const TensorInfo& tensor : tensors_)
            if (!is_weight_dtype(tensor.dtype))
                throw InputError("{}: its type is {}; weights are fp32, fp16 or bf16", describe(tensor), name_of(tensor.dtype));
    }

    fs::path folder_;
    std::string config_;
    io::FolderContent content_;
    std::vector<TensorInfo> tensors_;
    std::map<std::string, io::FolderContent::Entry> places_;
};
}  // namespace

std::unique_ptr<WeightSource> open_hugging_face_folder(const fs::path& folder) {
    return std::make_unique<HuggingFaceFolder>(folder);
}

}  // namespace sherd
