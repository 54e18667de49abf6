#include "sherd/data/token_file.hpp"

#include "data/stored_group.hpp"

#include "sherd/runtime/error.hpp"
#include "sherd/runtime/log.hpp"

#include <algorithm>
#include <numeric>
#include <optional>

namespace sherd {

namespace {
/// Smaller chunks are decompressed in about a millisecond: reading them again hides behind the computation.
constexpr std::uint64_t large_chunk_bytes = std::uint64_t{256} << 10;

std::int64_t stored_vocabulary(const io::HdfFile& file) {
    const std::optional<std::int64_t> value = file.integer_attribute("/", "vocab_size");
    if (!value) return -1;
    if (*value < 1) throw InputError("{}: attribute vocab_size is {}, expected at least 1", file.path().string(), *value);
    return *value;
}

std::string mebibytes(std::uint64_t bytes) {
    return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / 1048576.0);
}
}  // namespace

std::int64_t Document::targets() const noexcept {
    return std::accumulate(is_target.begin(), is_target.end(), std::int64_t{0});
}

struct TokenFile::Implementation {
    detail::OpenTokenFile file;
    std::unique_ptr<detail::StoredGroup> train, validation;

    Implementation(const std::filesystem::path& path, std::int64_t max_sequence, std::uint64_t cache_bytes)
        : file{io::open_kind(path, "tokens"), detail::ReadOnlyFile(path), detail::ChunkCache(cache_bytes), -1, max_sequence} {
        if (max_sequence < 0) throw UsageError("data.max_sequence is {}, expected at least 0 (no limit)", max_sequence);
        file.vocabulary = stored_vocabulary(file.file);
        if (!file.file.exists("train")) throw InputError("{}: there is no group 'train'", path.string());
        train = std::make_unique<detail::StoredGroup>(file, "train");
        if (train->documents() == 0) throw InputError("{}: group 'train' has no document, expected at least one", path.string());
        if (file.file.exists("validation")) validation = std::make_unique<detail::StoredGroup>(file, "validation");
        warn_of_large_chunks();
    }

    /// Reading in shuffled order is cheap as long as all compressed chunks stay in memory, or are small.
    void warn_of_large_chunks() const {
        std::vector<const detail::DatasetReader*> streams = train->streams();
        if (validation) {
            const auto more = validation->streams();
            streams.insert(streams.end(), more.begin(), more.end());
        }
        const auto* largest = *std::max_element(streams.begin(), streams.end(), [](const auto* a, const auto* b) {
            return a->compressed_chunk_bytes() < b->compressed_chunk_bytes();
        });
        const std::uint64_t chunk = largest->compressed_chunk_bytes();
        std::uint64_t total = 0;
        for (const auto* stream : streams) total += stream->compressed_chunk_bytes() > 0 ? stream->bytes() : 0;
        if (total <= file.cache.budget() || chunk < large_chunk_bytes) return;
        log::warning(
            fmt::format("{} is stored in compressed chunks of {}, {} in all, of which {} are held in memory: reading documents in shuffled "
                        "order decompresses chunks again and again. Store it uncompressed: h5repack -l CONTI {} OUT.h5",
                        largest->where(), mebibytes(chunk), mebibytes(total), mebibytes(std::max(file.cache.budget(), chunk)),
                        file.file.path().string()));
    }
};

TokenFile::TokenFile(const std::filesystem::path& path, std::int64_t max_sequence, std::uint64_t cache_bytes)
    : self_(std::make_unique<Implementation>(path, max_sequence, cache_bytes)) {}
TokenFile::~TokenFile() = default;
TokenFile::TokenFile(TokenFile&&) noexcept = default;

std::int64_t TokenFile::vocabulary() const noexcept {
    return self_->file.vocabulary;
}
const TokenGroup& TokenFile::train() const {
    return *self_->train;
}
const TokenGroup* TokenFile::validation() const {
    return self_->validation && self_->validation->documents() > 0 ? self_->validation.get() : nullptr;
}

}  // namespace sherd
