#include "sherd/io/weight_source.hpp"

#include "sherd/io/hdf5.hpp"
#include "sherd/runtime/error.hpp"
#include "sherd/tensor/half.hpp"

#include <algorithm>
#include <system_error>

namespace sherd {

namespace fs = std::filesystem;

std::int64_t TensorInfo::elements() const noexcept {
    std::int64_t n = 1;
    for (const std::int64_t d : shape) n *= d;
    return n;
}

std::string to_string(const std::vector<std::int64_t>& shape) {
    std::string text = "[";
    for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
    return text + "]";
}

const TensorInfo* WeightSource::find(const std::string& name) const {
    const auto& all = tensors();
    const auto found = std::find_if(all.begin(), all.end(), [&](const TensorInfo& t) { return t.name == name; });
    return found == all.end() ? nullptr : &*found;
}

namespace {
template <class Half>
void read_half(const WeightSource& source, const TensorInfo& tensor, std::int64_t begin, std::int64_t count, float* out) {
    constexpr std::int64_t piece = 1 << 20;
    std::vector<Half> buffer(static_cast<std::size_t>(std::min(piece, count)));
    for (std::int64_t done = 0; done < count; done += piece) {
        const std::int64_t n = std::min(piece, count - done);
        source.read(tensor, begin + done, n, buffer.data());
        std::transform(buffer.begin(), buffer.begin() + n, out + done, [](Half x) { return to_float(x); });
    }
}
}  // namespace

void WeightSource::read_float(const TensorInfo& tensor, std::int64_t begin, std::int64_t count, float* out) const {
    switch (tensor.dtype) {
        case DType::f32:
            return read(tensor, begin, count, out);
        case DType::f16:
            return read_half<float16>(*this, tensor, begin, count, out);
        case DType::bf16:
            return read_half<bfloat16>(*this, tensor, begin, count, out);
        default:
            throw InputError("{}: its type is {}; weights are fp32, fp16 or bf16", describe(tensor), name_of(tensor.dtype));
    }
}

std::unique_ptr<WeightSource> open_weights(const fs::path& path) {
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (!fs::exists(status)) throw InputError("'{}' does not exist; expected an HDF5 weights file or a Hugging Face folder", path.string());
    return fs::is_directory(status) ? open_hugging_face_folder(path) : open_weights_file(path);
}

}  // namespace sherd
