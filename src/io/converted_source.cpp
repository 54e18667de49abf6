#include "sherd/io/weight_source.hpp"
#include "sherd/tensor/half.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <utility>

namespace sherd {

namespace {

/// Where a string of a JSON text that opens at `open` ends: at its closing quote, or at the end of the text.
std::size_t string_end(std::string_view text, std::size_t open) {
    std::size_t at = open + 1;
    while (at < text.size() && text[at] != '"') at += text[at] == '\\' ? 2 : 1;
    return std::min(at, text.size());
}

/// Replaces the values of these keys of the outermost object where they are strings. The text may be as loose as people's files are: it is
/// parsed before, by others, and here only its strings and braces are followed.
std::string with_value(const std::string& text, const std::array<std::string_view, 2>& keys, std::string_view value) {
    std::string result;
    int depth = 0;
    std::size_t copied = 0;
    for (std::size_t at = 0; at < text.size(); ++at) {
        if (text[at] == '{' || text[at] == '[') ++depth;
        if (text[at] == '}' || text[at] == ']') --depth;
        if (text[at] != '"') continue;
        const std::size_t end = string_end(text, at);
        const std::string_view found(text.data() + at + 1, end > at ? end - at - 1 : 0);
        at = end;
        if (depth != 1 || std::find(keys.begin(), keys.end(), found) == keys.end()) continue;
        std::size_t next = end + 1;
        const auto skip_blanks = [&] {
            while (next < text.size() && std::isspace(static_cast<unsigned char>(text[next])) != 0) ++next;
        };
        skip_blanks();
        if (next >= text.size() || text[next] != ':') continue;
        ++next;
        skip_blanks();
        if (next >= text.size() || text[next] != '"') continue;
        result.append(text, copied, next + 1 - copied);
        result += value;
        at = copied = string_end(text, next);
    }
    return result.append(text, copied);
}

std::string_view name_in_config(DType dtype) {
    return dtype == DType::f32 ? "float32" : dtype == DType::bf16 ? "bfloat16" : "float16";
}

class ConvertedSource final : public WeightSource {
  public:
    ConvertedSource(std::unique_ptr<WeightSource> source, DType dtype)
        : source_(std::move(source)),
          dtype_(dtype),
          config_(with_value(source_->config(), {"dtype", "torch_dtype"}, name_in_config(dtype))),
          tensors_(source_->tensors()) {
        for (TensorInfo& t : tensors_)
            if (is_weight_dtype(t.dtype)) t.dtype = dtype;
    }

    std::string path() const override { return source_->path(); }
    const std::string& config() const override { return config_; }
    const std::vector<TensorInfo>& tensors() const override { return tensors_; }
    std::vector<std::string> file_names() const override { return source_->file_names(); }
    std::vector<std::uint8_t> file(const std::string& name) const override { return source_->file(name); }
    std::string describe(const TensorInfo& tensor) const override { return source_->describe(tensor); }

    void read_float(const TensorInfo& tensor, std::int64_t begin, std::int64_t count, float* out) const override {
        source_->read_float(original(tensor), begin, count, out);
    }
    void read(const TensorInfo& tensor, std::int64_t begin, std::int64_t count, void* out) const override {
        const TensorInfo& stored = original(tensor);
        if (dtype_ == DType::f32) return source_->read_float(stored, begin, count, static_cast<float*>(out));
        constexpr std::int64_t piece = 1 << 20;
        std::vector<float> values(static_cast<std::size_t>(std::min(piece, count)));
        auto* bits = static_cast<std::uint16_t*>(out);
        for (std::int64_t done = 0; done < count; done += piece) {
            const std::int64_t n = std::min(piece, count - done);
            source_->read_float(stored, begin + done, n, values.data());
            if (dtype_ == DType::bf16)
                std::transform(values.begin(), values.begin() + n, bits + done, [](float x) { return to_bfloat16(x).bits; });
            else
                std::transform(values.begin(), values.begin() + n, bits + done, [](float x) { return to_float16(x).bits; });
        }
    }

  private:
    const TensorInfo& original(const TensorInfo& tensor) const {
        const TensorInfo* found = source_->find(tensor.name);
        return found == nullptr ? tensor : *found;
    }

    std::unique_ptr<WeightSource> source_;
    DType dtype_;
    std::string config_;
    std::vector<TensorInfo> tensors_;
};

}  // namespace

std::unique_ptr<WeightSource> converted(std::unique_ptr<WeightSource> source, DType dtype) {
    return std::make_unique<ConvertedSource>(std::move(source), dtype);
}

}  // namespace sherd
