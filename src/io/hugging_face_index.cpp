#include "io/hugging_face_index.hpp"

#include "sherd/io/files.hpp"
#include "sherd/io/json.hpp"
#include "sherd/runtime/error.hpp"
#include "sherd/runtime/log.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <system_error>

namespace sherd::io {

namespace fs = std::filesystem;

namespace {
constexpr const char* index_name = "model.safetensors.index.json";
constexpr const char* single_name = "model.safetensors";

template <class Names>
std::string joined(const Names& names) {
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
    return text;
}

bool is_weights_file(const fs::path& path) {
    const std::string extension = path.extension().string(), name = path.filename().string();
    if (extension == ".bin" || extension == ".pt") return name.starts_with("pytorch_model");  // not training_args.bin
    return extension == ".safetensors" || extension == ".pth" || extension == ".gguf";
}

std::set<std::string> weight_files(const fs::path& folder) {
    std::set<std::string> names;
    std::error_code error;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
        if (is_weights_file(it->path())) names.insert(it->path().filename().string());
    if (error) throw InputError("cannot list the folder '{}': {}", folder.string(), error.message());
    return names;
}

std::map<std::string, std::string> read_weight_map(const fs::path& path) {
    const nlohmann::json json = parse_json(read_text(path), path.string());
    const auto found = json.is_object() ? json.find("weight_map") : json.end();
    if (!json.is_object() || found == json.end() || !found->is_object() || found->empty())
        throw InputError("'{}' has no 'weight_map'; expected an object of tensor names and file names", path.string());
    std::map<std::string, std::string> map;
    for (const auto& [tensor, file] : found->items()) {
        const std::string name = file.is_string() ? file.get<std::string>() : "";
        if (name.empty() || name.find('/') != std::string::npos)
            throw InputError("'{}', tensor '{}': its file is {}; expected the name of a file in the same folder", path.string(), tensor,
                             file.dump());
        map.emplace(tensor, name);
    }
    return map;
}

/// "; it lies in 'b.safetensors'": the file of the folder that really holds the tensor, for messages.
std::string real_place(const fs::path& folder, const std::string& tensor, const std::set<std::string>& candidates) {
    for (const std::string& name : candidates) {
        try {
            if (fs::path(name).extension() == ".safetensors" && SafetensorsFile(folder / name).find(tensor) != nullptr)
                return fmt::format("it lies in '{}'", name);
        } catch (const Error&) {  // another damaged file is not what this message is about
        }
    }
    return "no other file of the folder holds it";
}

void notice_ignored(const fs::path& folder, const std::set<std::string>& read, const std::set<std::string>& present, const char* rule) {
    std::vector<std::string> ignored;
    std::set_difference(present.begin(), present.end(), read.begin(), read.end(), std::back_inserter(ignored));
    if (!ignored.empty()) log::notice(fmt::format("'{}': read {} ({}); ignored {}", folder.string(), joined(read), rule, joined(ignored)));
}

FolderContent read_single(const fs::path& folder, const std::set<std::string>& present) {
    if (!present.contains(single_name)) {
        const std::string found = present.empty() ? "no weights at all" : joined(present);
        throw InputError("'{}' has neither {} nor {}; found {}. Weights in other formats must be saved as safetensors first",
                         folder.string(), single_name, index_name, found);
    }
    notice_ignored(folder, {single_name}, present, "there is no index");
    FolderContent content;
    content.files.emplace_back(folder / single_name);
    for (const TensorInfo& tensor : content.files[0].tensors()) content.entries.push_back({0, tensor.name});
    return content;
}

/// Every tensor of the files read must have an entry: one without is a sign of an index of another model.
void check_complete(const FolderContent& content, const std::map<std::string, std::string>& map, const fs::path& folder) {
    for (const SafetensorsFile& file : content.files)
        for (const TensorInfo& tensor : file.tensors())
            if (!map.contains(tensor.name))
                throw InputError("'{}' has no entry for tensor '{}', which lies in '{}'; index and files disagree",
                                 (folder / index_name).string(), tensor.name, file.path().filename().string());
}

FolderContent read_indexed(const fs::path& folder, bool tied, const std::set<std::string>& present) {
    std::map<std::string, std::string> map = read_weight_map(folder / index_name);
    std::map<std::string, std::size_t> number;
    std::set<std::string> read;
    FolderContent content;
    for (const auto& [tensor, file] : map) read.insert(file);
    for (const std::string& name : read) {
        std::error_code error;
        if (!fs::exists(folder / name, error)) {
            const auto first = std::find_if(map.begin(), map.end(), [&](const auto& entry) { return entry.second == name; });
            throw InputError("'{}' names the file '{}' for tensor '{}', but the folder does not hold that file; {}",
                             (folder / index_name).string(), name, first->first, real_place(folder, first->first, present));
        }
        number.emplace(name, content.files.size());
        content.files.emplace_back(folder / name);
    }
    for (const auto& [tensor, file] : map) {
        if (content.files[number.at(file)].find(tensor) != nullptr) continue;
        const std::string place = real_place(folder, tensor, read);
        if (tied && tensor == "lm_head.weight" && place.starts_with("no other")) {
            log::notice(fmt::format("'{}' has an entry for lm_head.weight that no file holds; the model is tied and needs none",
                                    (folder / index_name).string()));
            continue;
        }
        throw InputError("'{}' says that tensor '{}' lies in '{}', but that file does not hold it; {}", (folder / index_name).string(),
                         tensor, file, place);
    }
    check_complete(content, map, folder);
    for (std::size_t i = 0; i < content.files.size(); ++i)
        for (const TensorInfo& tensor : content.files[i].tensors())
            if (number.at(map.at(tensor.name)) == i) content.entries.push_back({i, tensor.name});
    notice_ignored(folder, read, present, "as the index names them");
    return content;
}
}  // namespace

FolderContent read_folder(const fs::path& folder, bool tied) {
    const std::set<std::string> present = weight_files(folder);
    std::error_code error;
    return fs::exists(folder / index_name, error) ? read_indexed(folder, tied, present) : read_single(folder, present);
}

}  // namespace sherd::io
