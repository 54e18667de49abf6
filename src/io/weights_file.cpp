#include "sherd/io/hdf5.hpp"
#include "sherd/io/weight_source.hpp"
#include "sherd/runtime/error.hpp"

namespace sherd {

namespace {
class WeightsFile final : public WeightSource {
  public:
    explicit WeightsFile(const std::filesystem::path& path) : file_(io::open_kind(path, "weights")) {
        const auto config = file_.string_attribute("/", "config");
        if (!config)
            throw InputError("'{}' has no 'config', neither as an attribute nor as a dataset; expected the text of config.json",
                             this->path());
        config_ = *config;
        if (!file_.exists("model")) throw InputError("'{}' has no group 'model'; expected one dataset per parameter in it", this->path());
        for (const std::string& name : file_.members("model")) {
            const io::DatasetInfo info = file_.info("model/" + name);
            if (!is_weight_dtype(info.dtype))
                throw InputError("file '{}', dataset 'model/{}': its type is {}; weights are fp32, fp16 or bf16", this->path(), name,
                                 name_of(info.dtype));
            tensors_.push_back({name, info.shape, info.dtype});
        }
    }

    std::string path() const override { return file_.path().string(); }
    const std::string& config() const override { return config_; }
    const std::vector<TensorInfo>& tensors() const override { return tensors_; }
    void read(const TensorInfo& tensor, std::int64_t begin, std::int64_t count, void* out) const override {
        file_.read("model/" + tensor.name, begin, count, out);
    }
    std::vector<std::string> file_names() const override {
        return file_.exists("files") ? file_.members("files") : std::vector<std::string>{};
    }
    std::vector<std::uint8_t> file(const std::string& name) const override {
        const std::string dataset = "files/" + name;
        const io::DatasetInfo info = file_.info(dataset);
        if (size_of(info.dtype) != 1 || info.shape.size() != 1)
            throw InputError("file '{}', dataset '{}': {} of shape {}; expected uint8 in one dimension", path(), dataset,
                             name_of(info.dtype), to_string(info.shape));
        std::vector<std::uint8_t> bytes(static_cast<std::size_t>(info.shape[0]));
        file_.read(dataset, 0, info.shape[0], bytes.data());
        return bytes;
    }
    std::string describe(const TensorInfo& tensor) const override {
        return fmt::format("file '{}', dataset 'model/{}'", path(), tensor.name);
    }

  private:
    io::HdfFile file_;
    std::string config_;
    std::vector<TensorInfo> tensors_;
};
}  // namespace

std::unique_ptr<WeightSource> open_weights_file(const std::filesystem::path& path) {
    return std::make_unique<WeightsFile>(path);
}

}  // namespace sherd
