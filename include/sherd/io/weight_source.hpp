#pragma once
/// One way to read a model's parameters and its configuration, wherever they lie: an HDF5 weights file, a Hugging Face folder, a
/// checkpoint.
#include "sherd/tensor/dtype.hpp"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace sherd {

/// What is known of a stored tensor without reading it.
struct TensorInfo {
    std::string name;                 ///< Hugging Face name, e.g. "model.layers.0.mlp.up_proj.weight"
    std::vector<std::int64_t> shape;  ///< row-major
    DType dtype;                      ///< as stored
    /// Number of elements: product of the shape.
    std::int64_t elements() const noexcept;
    std::uint64_t bytes() const noexcept { return static_cast<std::uint64_t>(elements()) * size_of(dtype); }
};

/// "[131, 48]"
std::string to_string(const std::vector<std::int64_t>& shape);

/// Read-only source of a model. Threads may call different sources; one source is used by one thread at a time.
class WeightSource {
  public:
    virtual ~WeightSource() = default;
    /// Path for messages.
    virtual std::string path() const = 0;
    /// The model's config.json, as text, byte for byte as it was imported.
    virtual const std::string& config() const = 0;
    /// All tensors, in file order.
    virtual const std::vector<TensorInfo>& tensors() const = 0;
    /// Reads elements [begin, begin + count) of a tensor, flattened row-major, as stored, into `out` (count * size_of(dtype) bytes).
    /// Throws InputError naming file and tensor.
    virtual void read(const TensorInfo& tensor, std::int64_t begin, std::int64_t count, void* out) const = 0;
    /// Names of the files that ride along (tokenizer, generation settings), without directories.
    virtual std::vector<std::string> file_names() const = 0;
    /// Bytes of such a file. Throws InputError.
    virtual std::vector<std::uint8_t> file(const std::string& name) const = 0;
    /// "file 'W.h5', dataset 'model/NAME'" or "file 'a.safetensors', tensor 'NAME'": where a tensor lies, for messages.
    virtual std::string describe(const TensorInfo& tensor) const = 0;

    /// The tensor of that name or nullptr.
    const TensorInfo* find(const std::string& name) const;
    /// Like read, as float: exact from fp32, fp16 and bf16. A source that has more than its type holds gives that: a checkpoint its
    /// masters.
    virtual void read_float(const TensorInfo& tensor, std::int64_t begin, std::int64_t count, float* out) const;
};

/// HDF5 weights file (`sherd.kind` = "weights"). Throws InputError: missing, not HDF5, truncated, wrong kind or version, a dataset that
/// is no weight type, no config.
std::unique_ptr<WeightSource> open_weights_file(const std::filesystem::path& path);

/// Hugging Face folder: config.json and model.safetensors, or several files and model.safetensors.index.json. Throws InputError.
std::unique_ptr<WeightSource> open_hugging_face_folder(const std::filesystem::path& folder);

/// Either of the two above, by what lies at `path`.
std::unique_ptr<WeightSource> open_weights(const std::filesystem::path& path);

/// The same model with every tensor seen in one weight type, rounded to nearest even; what is too large for the type reads as infinity.
/// Where its config names a type ("dtype", "torch_dtype"), it names this one; the rest of the text stays as it is.
std::unique_ptr<WeightSource> converted(std::unique_ptr<WeightSource> source, DType dtype);

}  // namespace sherd
