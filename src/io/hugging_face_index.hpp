#pragma once
/// Private to io: which tensor of a Hugging Face folder lies in which file.
#include "sherd/io/safetensors.hpp"

#include <filesystem>
#include <string>
#include <vector>

namespace sherd::io {

/// The safetensors files that a folder's index names (or its only file), and every tensor to be taken from them.
struct FolderContent {
    struct Entry {
        std::size_t file;  ///< index of files
        std::string name;  ///< in that file
    };
    std::vector<SafetensorsFile> files;  ///< in the order of their names
    std::vector<Entry> entries;          ///< by file, then by place in the file
};

/// Reads `model.safetensors.index.json` where there is one, else `model.safetensors`. What the index names is read, exactly; other weight
/// files are named in a notice. An entry for `lm_head.weight` that no file holds is a notice where `tied`. Throws InputError: no weights,
/// an index that is no index, an entry whose file is absent or does not hold it (and where it really is), a tensor without an entry.
FolderContent read_folder(const std::filesystem::path& folder, bool tied);

}  // namespace sherd::io
