#include "sherd/checkpoint/checkpoint.hpp"
#include "sherd/io/hdf5.hpp"
#include "sherd/runtime/error.hpp"
#include "sherd/tensor/half.hpp"

#include <map>
#include <optional>

namespace sherd {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t piece_elements = 4 << 20;
constexpr int most_open_files = 64;

/// Open rank files of a set, and reading of any range of any parameter through its pieces.
class SetReader {
  public:
    SetReader(fs::path folder, const Manifest& manifest)
        : folder_(std::move(folder)), manifest_(manifest), files_(manifest.rank_files.size()) {}

    void read(StateKind kind, std::int32_t parameter, std::int64_t begin, std::int64_t count, float* out) const {
        const auto first = std::lower_bound(manifest_.pieces.begin(), manifest_.pieces.end(), parameter,
                                            [](const ManifestPiece& p, std::int32_t wanted) { return p.parameter < wanted; });
        const std::string name =
            fmt::format("{}/{}", state_groups[static_cast<int>(kind)], manifest_.parameters[static_cast<std::size_t>(parameter)].name);
        for (auto piece = first; piece != manifest_.pieces.end() && piece->parameter == parameter; ++piece) {
            const Interval both = intersect({piece->begin, piece->end}, {begin, begin + count});
            if (!both.empty()) file(piece->rank_file).read(name, both.begin - piece->begin, both.size(), out + (both.begin - begin));
        }
    }

  private:
    const io::HdfFile& file(std::int32_t index) const {
        auto& slot = files_[static_cast<std::size_t>(index)];
        if (!slot && ++open_ > most_open_files) {  // sets of many ranks: the system allows about 1,000
            for (auto& file : files_) file.reset();
            open_ = 1;
        }
        if (!slot) slot = io::HdfFile::open(folder_ / manifest_.rank_files[static_cast<std::size_t>(index)].name);
        return *slot;
    }
    fs::path folder_;
    const Manifest& manifest_;
    mutable std::vector<std::optional<io::HdfFile>> files_;
    mutable int open_ = 0;
};

class CheckpointSource final : public WeightSource {
  public:
    explicit CheckpointSource(FoundSet set)
        : set_(std::move(set)), reader_(set_.folder, set_.manifest), manifest_file_(io::HdfFile::open(set_.folder / "manifest.h5")) {
        for (const auto& p : set_.manifest.parameters) tensors_.push_back({p.name, p.shape, p.source});
    }
    std::string path() const override { return set_.folder.string(); }
    const std::string& config() const override { return set_.manifest.config; }
    const std::vector<TensorInfo>& tensors() const override { return tensors_; }
    std::string describe(const TensorInfo& tensor) const override {
        return fmt::format("checkpoint '{}', parameter '{}'", path(), tensor.name);
    }

    void read(const TensorInfo& tensor, std::int64_t begin, std::int64_t count, void* out) const override {
        const auto index = static_cast<std::int32_t>(find(tensor.name) - tensors_.data());
        if (tensor.dtype == DType::f32) return reader_.read(StateKind::master, index, begin, count, static_cast<float*>(out));
        std::vector<float> values(static_cast<std::size_t>(std::min(count, piece_elements)));
        auto* bits = static_cast<std::uint16_t*>(out);
        for (std::int64_t at = 0; at < count; at += piece_elements) {
            const std::int64_t n = std::min(piece_elements, count - at);
            reader_.read(StateKind::master, index, begin + at, n, values.data());
            for (std::int64_t i = 0; i < n; ++i) {
                const float x = values[static_cast<std::size_t>(i)];
                bits[at + i] = tensor.dtype == DType::bf16 ? to_bfloat16(x).bits : to_float16(x).bits;
            }
        }
    }
    void read_float(const TensorInfo& tensor, std::int64_t begin, std::int64_t count, float* out) const override {
        reader_.read(StateKind::master, static_cast<std::int32_t>(find(tensor.name) - tensors_.data()), begin, count, out);
    }
    std::vector<std::string> file_names() const override { return manifest_file_.members("files"); }
    std::vector<std::uint8_t> file(const std::string& name) const override {
        const auto info = manifest_file_.info("files/" + name);
        std::vector<std::uint8_t> bytes(static_cast<std::size_t>(info.shape.at(0)));
        if (!bytes.empty()) manifest_file_.read("files/" + name, 0, info.shape[0], bytes.data());
        return bytes;
    }

  private:
    FoundSet set_;
    SetReader reader_;
    io::HdfFile manifest_file_;
    std::vector<TensorInfo> tensors_;
};

}  // namespace

void read_checkpoint(const FoundSet& set, TrainingState& state) {
    const SetReader reader(set.folder, set.manifest);
    std::map<std::string, std::int32_t> index;
    for (std::size_t i = 0; i < set.manifest.parameters.size(); ++i) index[set.manifest.parameters[i].name] = static_cast<std::int32_t>(i);
    std::vector<float> staging;
    for (const ParameterPlace place : state.layout().places()) {
        const FlatParameter& p = state.layout().at(place);
        const auto found = index.find(p.spec.name);
        if (found == index.end() || set.manifest.parameters[static_cast<std::size_t>(found->second)].shape != p.spec.shape)
            throw InputError("{}: is of another model: it has no parameter '{}' of shape {}", set.folder.string(), p.spec.name,
                             to_string(p.spec.shape));
        for (const StateKind kind : {StateKind::master, StateKind::exp_avg, StateKind::exp_avg_sq})
            for (const Interval& interval : state.wanted(kind, place.unit)) {
                const Interval part = intersect(interval, p.interval());
                for (std::int64_t at = part.begin - p.begin; at < part.end - p.begin; at += piece_elements) {
                    const std::int64_t n = std::min(piece_elements, part.end - p.begin - at);
                    staging.resize(static_cast<std::size_t>(n));
                    reader.read(kind, found->second, at, n, staging.data());
                    state.load(kind, place, at, n, staging.data());
                }
            }
    }
    state.weights_loaded();
}

std::unique_ptr<WeightSource> open_checkpoint(const fs::path& path) {
    return std::make_unique<CheckpointSource>(find_named_set(path));
}

}  // namespace sherd
