/// make_random_tokens: a token file of uniform random ids in documents of one length, for benchmarks.
#include "tools/tool.hpp"

#include "sherd/io/files.hpp"

#include <algorithm>
#include <random>

namespace sherd::tools {
namespace {

constexpr std::int64_t slice = std::int64_t{1} << 20;
constexpr std::string_view usage = "make_random_tokens OUT.h5 VOCAB DOCUMENTS LENGTH SEED";

/// Writes `n` elements made by `next()`, slice by slice.
template <class Element, class Next>
void write_stream(io::HdfFile& out, const std::string& dataset, DType dtype, std::int64_t n, Next next) {
    out.create_dataset(dataset, {n}, dtype);
    std::vector<Element> values;
    for (std::int64_t begin = 0; begin < n; begin += slice) {
        values.resize(static_cast<std::size_t>(std::min(slice, n - begin)));
        std::generate(values.begin(), values.end(), [&] { return static_cast<Element>(next()); });
        out.write(dataset, begin, static_cast<std::int64_t>(values.size()), values.data());
    }
}

void make(const std::vector<std::string>& arguments) {
    constexpr std::int64_t most_tokens = std::int64_t{1} << 40;
    const std::int64_t vocabulary = whole_number("VOCAB", arguments[1], 1, largest_vocabulary);
    const std::int64_t documents = whole_number("DOCUMENTS", arguments[2], 1, most_tokens);
    const std::int64_t length = whole_number("LENGTH", arguments[3], 1, most_tokens / documents);
    std::mt19937_64 random(static_cast<std::uint64_t>(whole_number("SEED", arguments[4], 0)));

    io::AtomicTarget target(arguments[0], io::AtomicTarget::Kind::file);
    io::HdfFile out = io::HdfFile::create(target.path());
    write_token_attributes(out, vocabulary, "");
    const auto id = [&] { return random() % static_cast<std::uint64_t>(vocabulary); };
    if (token_dtype(vocabulary) == DType::u16)
        write_stream<std::uint16_t>(out, "train/tokens", DType::u16, documents * length, id);
    else
        write_stream<std::uint32_t>(out, "train/tokens", DType::u32, documents * length, id);
    std::int64_t offset = -length;
    write_stream<std::uint64_t>(out, "train/doc_offsets", DType::u64, documents + 1, [&] { return offset += length; });
    out.close();
    target.commit();
    log::line(fmt::format("{}: {} documents of {} tokens, vocabulary {}", arguments[0], documents, length, vocabulary));
}

}  // namespace
}  // namespace sherd::tools

int main(int argc, char** argv) {
    return sherd::tools::run(argc, argv, sherd::tools::usage, 5, 5, sherd::tools::make);
}
