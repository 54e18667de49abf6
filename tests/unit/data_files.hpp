#pragma once
/// Token files for tests, good and bad ones.
#include "sherd/io/hdf5.hpp"
#include "sherd/runtime/error.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <stdlib.h>
#include <string>
#include <vector>

namespace sherd::test {

/// A folder that goes away with the object.
class TokenFolder {
  public:
    TokenFolder() {
        std::string name = (std::filesystem::temp_directory_path() / "sherd-tokens-XXXXXX").string();
        if (::mkdtemp(name.data()) == nullptr) throw EnvironmentError("cannot make a temporary folder");
        path_ = name;
    }
    ~TokenFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    TokenFolder(const TokenFolder&) = delete;
    TokenFolder& operator=(const TokenFolder&) = delete;
    std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

  private:
    std::filesystem::path path_;
};

struct GroupSpec {
    std::vector<std::uint32_t> tokens;
    std::vector<std::uint64_t> offsets;
    std::optional<std::vector<std::uint8_t>> mask;
    DType token_type = DType::u16;
    DType offset_type = DType::u64;
};

template <class Element>
void write_values(io::HdfFile& file, const std::string& dataset, DType type, const std::vector<Element>& values) {
    file.create_dataset(dataset, {static_cast<std::int64_t>(values.size())}, type);
    if (!values.empty()) file.write(dataset, 0, static_cast<std::int64_t>(values.size()), values.data());
}

inline void write_group(io::HdfFile& file, const std::string& name, const GroupSpec& group) {
    if (group.token_type == DType::u16)
        write_values(file, name + "/tokens", DType::u16, std::vector<std::uint16_t>(group.tokens.begin(), group.tokens.end()));
    else
        write_values(file, name + "/tokens", group.token_type, group.tokens);
    write_values(file, name + "/doc_offsets", group.offset_type, group.offsets);
    if (group.mask) write_values(file, name + "/loss_mask", DType::u8, *group.mask);
}

/// vocabulary -1: no attribute.
inline void write_header(io::HdfFile& file, std::int64_t vocabulary = -1) {
    file.set_attribute("/", "sherd.kind", std::string("tokens"));
    file.set_attribute("/", "sherd.version", std::int64_t{1});
    if (vocabulary >= 0) file.set_attribute("/", "vocab_size", vocabulary);
}

inline std::filesystem::path write_file(const std::filesystem::path& path, const GroupSpec& train, std::int64_t vocabulary = -1,
                                        const std::optional<GroupSpec>& validation = std::nullopt) {
    std::filesystem::remove(path);
    io::HdfFile file = io::HdfFile::create(path);
    write_header(file, vocabulary);
    write_group(file, "train", train);
    if (validation) write_group(file, "validation", *validation);
    file.close();
    return path;
}

/// Expects an InputError whose message holds every part.
template <class Function>
void expect_input_error(Function function, std::initializer_list<std::string> parts) {
    try {
        function();
        FAIL() << "accepted; expected an error with '" << *parts.begin() << "'";
    } catch (const InputError& error) {
        for (const std::string& part : parts)
            EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << "no '" << part << "' in: " << error.what();
    }
}

}  // namespace sherd::test
