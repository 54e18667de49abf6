/// make_tokens: documents of token ids in a safetensors file, as Python writes them easily, into a token file (docs/formats.md).
#include "tools/tool.hpp"

#include "sherd/data/token_file.hpp"
#include "sherd/io/files.hpp"
#include "sherd/io/safetensors.hpp"

#include <algorithm>

namespace sherd::tools {
namespace {

constexpr std::int64_t slice = std::int64_t{1} << 20;

constexpr std::string_view usage =
    "make_tokens IN.safetensors OUT.h5 VOCAB [TOKENIZER_NAME]\n"
    "IN holds train/tokens, train/doc_offsets and optionally train/loss_mask, validation/tokens, validation/doc_offsets, "
    "validation/loss_mask, all of one dimension and of integer types";

template <class Stored>
void widen(const io::SafetensorsFile& in, const TensorInfo& tensor, std::int64_t begin, std::vector<std::int64_t>& out) {
    std::vector<Stored> stored(out.size());
    in.read(tensor, begin, static_cast<std::int64_t>(out.size()), stored.data());
    std::transform(stored.begin(), stored.end(), out.begin(), [](Stored value) { return static_cast<std::int64_t>(value); });
}

/// Elements [begin, begin + out.size()) of an integer tensor. uint64 past 2^63 turn negative, and are refused as such.
void read_integers(const io::SafetensorsFile& in, const TensorInfo& tensor, std::int64_t begin, std::vector<std::int64_t>& out) {
    switch (tensor.dtype) {
        case DType::i64:
            return widen<std::int64_t>(in, tensor, begin, out);
        case DType::u64:
            return widen<std::uint64_t>(in, tensor, begin, out);
        case DType::i32:
            return widen<std::int32_t>(in, tensor, begin, out);
        case DType::u32:
            return widen<std::uint32_t>(in, tensor, begin, out);
        case DType::i16:
            return widen<std::int16_t>(in, tensor, begin, out);
        case DType::u16:
            return widen<std::uint16_t>(in, tensor, begin, out);
        case DType::i8:
            return widen<std::int8_t>(in, tensor, begin, out);
        case DType::u8:
        case DType::boolean:
            return widen<std::uint8_t>(in, tensor, begin, out);
        default:
            throw InputError("{}: tensor '{}' is of type {}, expected integers", in.path().string(), tensor.name, name_of(tensor.dtype));
    }
}

template <class Written>
void narrow_and_write(io::HdfFile& out, const std::string& dataset, std::int64_t begin, const std::vector<std::int64_t>& values) {
    std::vector<Written> narrow(values.size());
    std::transform(values.begin(), values.end(), narrow.begin(), [](std::int64_t value) { return static_cast<Written>(value); });
    out.write(dataset, begin, static_cast<std::int64_t>(narrow.size()), narrow.data());
}

/// Copies one tensor slice by slice into a dataset of the same name; every value must lie in [0, limit).
void copy(const io::SafetensorsFile& in, const TensorInfo& tensor, io::HdfFile& out, DType dtype, std::int64_t limit) {
    if (tensor.shape.size() != 1)
        throw InputError("{}: tensor '{}' has shape {}, expected one dimension", in.path().string(), tensor.name, to_string(tensor.shape));
    out.create_dataset(tensor.name, tensor.shape, dtype);
    std::vector<std::int64_t> values;
    for (std::int64_t begin = 0, n = tensor.shape[0]; begin < n; begin += slice) {
        values.resize(static_cast<std::size_t>(std::min(slice, n - begin)));
        read_integers(in, tensor, begin, values);
        for (std::size_t i = 0; i < values.size(); ++i)
            if (values[i] < 0 || values[i] >= limit)
                throw InputError("{}: tensor '{}', index {}: value {}, expected 0 to {}", in.path().string(), tensor.name,
                                 begin + static_cast<std::int64_t>(i), values[i], limit - 1);
        if (dtype == DType::u8) narrow_and_write<std::uint8_t>(out, tensor.name, begin, values);
        if (dtype == DType::u16) narrow_and_write<std::uint16_t>(out, tensor.name, begin, values);
        if (dtype == DType::u32) narrow_and_write<std::uint32_t>(out, tensor.name, begin, values);
        if (dtype == DType::u64) narrow_and_write<std::uint64_t>(out, tensor.name, begin, values);
    }
}

const TensorInfo& required(const io::SafetensorsFile& in, const std::string& name) {
    const TensorInfo* tensor = in.find(name);
    if (tensor == nullptr) throw InputError("{}: there is no tensor '{}'", in.path().string(), name);
    return *tensor;
}

void copy_group(const io::SafetensorsFile& in, const std::string& group, io::HdfFile& out, std::int64_t vocabulary) {
    const TensorInfo& tokens = required(in, group + "/tokens");
    copy(in, tokens, out, token_dtype(vocabulary), vocabulary);
    copy(in, required(in, group + "/doc_offsets"), out, DType::u64, tokens.elements() + 1);
    if (const TensorInfo* mask = in.find(group + "/loss_mask")) copy(in, *mask, out, DType::u8, 2);
}

void convert(const std::vector<std::string>& arguments) {
    const std::int64_t vocabulary = whole_number("VOCAB", arguments[2], 1, largest_vocabulary);
    const io::SafetensorsFile in(arguments[0]);
    io::AtomicTarget target(arguments[1], io::AtomicTarget::Kind::file);
    io::HdfFile out = io::HdfFile::create(target.path());
    write_token_attributes(out, vocabulary, arguments.size() > 3 ? arguments[3] : "");
    copy_group(in, "train", out, vocabulary);
    if (in.find("validation/tokens") != nullptr) copy_group(in, "validation", out, vocabulary);
    out.close();
    std::int64_t documents = 0;
    {
        const TokenFile check(target.path(), 0);  // what training would refuse is refused here, before the file gets its name
        documents = check.train().documents();
        check.train().scan(vocabulary, 0);
        if (check.validation() != nullptr) check.validation()->scan(vocabulary, 0);
    }
    target.commit();
    log::line(fmt::format("{}: {} documents to train on, vocabulary {}", arguments[1], documents, vocabulary));
}

}  // namespace
}  // namespace sherd::tools

int main(int argc, char** argv) {
    return sherd::tools::run(argc, argv, sherd::tools::usage, 3, 4, sherd::tools::convert);
}
