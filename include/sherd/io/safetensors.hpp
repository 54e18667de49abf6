#pragma once
/// safetensors files: an 8-byte little-endian header length, a JSON header, then the tensors' bytes.
/// Format: https://github.com/huggingface/safetensors
#include "sherd/io/weight_source.hpp"

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace sherd::io {

/// An open safetensors file. The header is checked in full before anything is read: length within the file and under 100 MB, JSON without
/// duplicate names, known dtypes, shapes without negative or overflowing sizes, offsets that agree with dtype and shape, lie within the
/// file, do not overlap and leave no hole.
class SafetensorsFile {
  public:
    /// Throws InputError naming file, tensor and what was found and expected.
    explicit SafetensorsFile(const std::filesystem::path& path);
    ~SafetensorsFile();
    SafetensorsFile(SafetensorsFile&&) noexcept;
    SafetensorsFile& operator=(SafetensorsFile&&) = delete;

    const std::filesystem::path& path() const noexcept { return path_; }
    const std::vector<TensorInfo>& tensors() const noexcept { return tensors_; }
    const std::map<std::string, std::string>& metadata() const noexcept { return metadata_; }
    const TensorInfo* find(const std::string& name) const;
    /// Reads elements [begin, begin+count) of the flattened tensor as stored.
    void read(const TensorInfo& tensor, std::int64_t begin, std::int64_t count, void* out) const;

  private:
    std::filesystem::path path_;
    int fd_ = -1;
    std::vector<TensorInfo> tensors_;
    std::vector<std::uint64_t> offsets_;  ///< byte offset in the file, by index of tensors_
    std::map<std::string, std::size_t> index_;
    std::map<std::string, std::string> metadata_;
};

/// Writes one safetensors file, tensor by tensor in the order given to the constructor. Metadata is always {"format":"pt"}.
class SafetensorsWriter {
  public:
    SafetensorsWriter(const std::filesystem::path& path, const std::vector<TensorInfo>& tensors);
    ~SafetensorsWriter();
    SafetensorsWriter(const SafetensorsWriter&) = delete;
    SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;
    /// Appends bytes of the current tensor; tensors follow one another without a gap. Throws InputError (full disk).
    void write(const void* data, std::uint64_t bytes);
    /// Checks that exactly the promised bytes were written, fsyncs and closes.
    void close();

  private:
    std::filesystem::path path_;
    int fd_ = -1;
    std::uint64_t expected_ = 0, written_ = 0;
};

}  // namespace sherd::io
