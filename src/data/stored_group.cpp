#include "data/stored_group.hpp"

#include "sherd/runtime/error.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <span>
#include <stdexcept>

namespace sherd::detail {

namespace {
constexpr std::int64_t slice = std::int64_t{1} << 20;               ///< elements read at a time
constexpr std::int64_t digest_block_bytes = std::int64_t{4} << 20;  ///< part of the digest's definition

/// Calls block(index, begin, count) for the blocks of `part` in a stream of n elements.
template <class Function>
void for_blocks(std::int64_t n, std::int64_t element_bytes, std::int64_t part, std::int64_t parts, Function block) {
    const std::int64_t size = digest_block_bytes / element_bytes;
    for (std::int64_t i = part; i * size < n; i += parts) block(static_cast<std::uint64_t>(i), i * size, std::min(size, n - i * size));
}
}  // namespace

StoredGroup::StoredGroup(OpenTokenFile& file, std::string name)
    : file_(file), name_(std::move(name)), tokens_(file.file, file.raw, file.cache, name_ + "/tokens") {
    if (tokens_.dtype() != DType::u16 && tokens_.dtype() != DType::u32)
        throw InputError("{}: its type is {}, expected uint16 or uint32", tokens_.where(), name_of(tokens_.dtype()));
    load_offsets(DatasetReader(file.file, file.raw, file.cache, name_ + "/doc_offsets"));
    if (!file.file.exists(name_ + "/loss_mask")) return;
    mask_ = std::make_unique<DatasetReader>(file.file, file.raw, file.cache, name_ + "/loss_mask");
    if (mask_->dtype() != DType::u8 && mask_->dtype() != DType::boolean)
        throw InputError("{}: its type is {}, expected uint8", mask_->where(), name_of(mask_->dtype()));
    if (mask_->size() != tokens_.size())
        throw InputError("{}: it has {} elements, expected {}, as many as '{}'", mask_->where(), mask_->size(), tokens_.size(),
                         tokens_.dataset());
}

void StoredGroup::load_offsets(const DatasetReader& stored) {
    if (stored.dtype() != DType::u64 && stored.dtype() != DType::i64)
        throw InputError("{}: its type is {}, expected uint64", stored.where(), name_of(stored.dtype()));
    const std::int64_t n = tokens_.size(), entries = stored.size();
    if (entries == 0 && n == 0) {
        offsets_ = {0};
        return;
    }
    if (entries == 0) throw InputError("{}: it is empty, expected one entry more than there are documents", stored.where());
    // checked slice by slice, so that a header that promises too much fails at its first wrong value, not for want of memory
    std::vector<std::int64_t> part(static_cast<std::size_t>(std::min(entries, slice)));
    for (std::int64_t begin = 0; begin < entries; begin += slice) {
        const std::int64_t count = std::min(slice, entries - begin);
        stored.read(begin, count, part.data());
        for (std::int64_t i = begin; i < begin + count; ++i) {
            const std::int64_t value = part[static_cast<std::size_t>(i - begin)];
            const std::string shown =
                stored.dtype() == DType::u64 ? std::to_string(static_cast<std::uint64_t>(value)) : std::to_string(value);
            if (i == 0 && value != 0) throw InputError("{}, index 0: offset {}, expected 0", stored.where(), shown);
            if (value < 0 || value > n)
                throw InputError("{}, index {}: offset {}, expected at most {}, the length of '{}'", stored.where(), i, shown, n,
                                 tokens_.dataset());
            if (i > 0 && value == offsets_.back())
                throw InputError("{}, index {}: document {} has no token (offsets {} and {} are both {}), expected at least one",
                                 stored.where(), i, i - 1, i - 1, i, shown);
            if (i > 0 && value < offsets_.back())
                throw InputError("{}, index {}: offset {} after {}, expected a larger one: offsets rise", stored.where(), i, shown,
                                 offsets_.back());
            offsets_.push_back(value);
        }
    }
    if (offsets_.back() != n)
        throw InputError("{}, index {}: the last offset is {}, expected {}, the length of '{}'", stored.where(), entries - 1,
                         offsets_.back(), n, tokens_.dataset());
    offsets_.shrink_to_fit();
}

std::vector<const DatasetReader*> StoredGroup::streams() const {
    if (mask_) return {&tokens_, mask_.get()};
    return {&tokens_};
}

std::int64_t StoredGroup::length(std::int64_t i) const {
    if (i < 0 || i >= documents())
        throw InputError("{}: group '{}' has {} documents, document {} was asked for", file_.file.path().string(), name_, documents(), i);
    const std::int64_t stored = offset(i + 1) - offset(i);
    return file_.max_sequence > 0 ? std::min(stored, file_.max_sequence) : stored;
}

Document StoredGroup::read(std::int64_t i) const {
    const std::int64_t count = length(i);
    Document document;
    document.index = i;
    std::vector<std::uint32_t> ids(static_cast<std::size_t>(count));
    read_tokens(offset(i), count, ids.data());
    check_ids(ids, offset(i), std::numeric_limits<std::int32_t>::max());
    document.tokens.assign(ids.begin(), ids.end());
    document.is_target.resize(ids.size());
    read_mask(offset(i), count, document.is_target.data());
    document.is_target[0] = 0;  // nothing precedes it that could predict it
    return document;
}

void StoredGroup::read_tokens(std::int64_t begin, std::int64_t count, std::uint32_t* out) const {
    if (tokens_.dtype() == DType::u32) return tokens_.read(begin, count, out);
    std::vector<std::uint16_t> narrow(static_cast<std::size_t>(count));
    tokens_.read(begin, count, narrow.data());
    std::copy(narrow.begin(), narrow.end(), out);
}

void StoredGroup::read_mask(std::int64_t begin, std::int64_t count, std::uint8_t* out) const {
    if (mask_) return mask_->read(begin, count, out);
    std::fill_n(out, count, std::uint8_t{1});
}

GroupFacts StoredGroup::facts_of_lengths(std::int64_t max_positions) const {
    GroupFacts facts;
    facts.documents = documents();
    for (std::int64_t i = 0; i < facts.documents; ++i) {
        const std::int64_t stored = offset(i + 1) - offset(i), used = length(i);
        facts.tokens += used;
        if (used > facts.longest) {
            facts.longest = used;
            facts.longest_index = i;
        }
        if (used < stored) {
            ++facts.cut_documents;
            facts.cut_tokens += stored - used;
        }
        if (max_positions > 0 && used > max_positions) ++facts.over_positions;
    }
    return facts;
}

void StoredGroup::check_ids(const std::vector<std::uint32_t>& ids, std::int64_t begin, std::int64_t vocabulary) const {
    const bool by_file = file_.vocabulary >= 0 && file_.vocabulary < vocabulary;
    const std::int64_t limit = by_file ? file_.vocabulary : vocabulary;
    const auto bad = std::find_if(ids.begin(), ids.end(), [&](std::uint32_t id) { return id >= limit; });
    if (bad == ids.end()) return;
    throw InputError("{}, index {}: token id {}, expected less than {} ({})", tokens_.where(), begin + (bad - ids.begin()), *bad, limit,
                     by_file ? "the file's attribute vocab_size" : "the model's vocabulary");
}

void StoredGroup::check_mask(const std::vector<std::uint8_t>& mask, std::int64_t begin) const {
    const auto bad = std::find_if(mask.begin(), mask.end(), [](std::uint8_t value) { return value > 1; });
    if (bad != mask.end()) throw InputError("{}, index {}: value {}, expected 0 or 1", mask_->where(), begin + (bad - mask.begin()), *bad);
}

GroupFacts StoredGroup::scan(std::int64_t vocabulary, std::int64_t max_positions) const {
    GroupFacts facts = facts_of_lengths(max_positions);
    const std::int64_t n = tokens_.size();
    std::int64_t document = 0;
    std::vector<std::uint32_t> ids;
    std::vector<std::uint8_t> mask;
    for (std::int64_t begin = 0; begin < n; begin += slice) {
        const std::int64_t end = std::min(n, begin + slice);
        ids.resize(static_cast<std::size_t>(end - begin));
        mask.resize(ids.size());
        read_tokens(begin, end - begin, ids.data());
        read_mask(begin, end - begin, mask.data());
        check_ids(ids, begin, vocabulary);
        check_mask(mask, begin);
        for (; document < facts.documents && offset(document) < end; ++document) {
            const std::int64_t first = std::max(offset(document) + 1, begin), last = std::min(offset(document) + length(document), end);
            if (first < last)
                facts.targets += std::accumulate(mask.begin() + (first - begin), mask.begin() + (last - begin), std::int64_t{0});
            if (offset(document + 1) > end) break;  // goes on in the next slice
        }
    }
    if (facts.targets == 0)
        throw InputError(
            "{}: group '{}' has no target in {} documents{}: nothing could be learned from it. The first token of a document "
            "is never a target{}",
            file_.file.path().string(), name_, facts.documents,
            facts.cut_documents > 0 ? fmt::format(" cut at data.max_sequence = {}", file_.max_sequence) : "",
            mask_ ? fmt::format("; '{}' is 0 for all others", mask_->dataset()) : "");
    return facts;
}

Digest StoredGroup::digest(std::int64_t part, std::int64_t parts) const {
    if (part < 0 || part >= parts) throw std::invalid_argument(fmt::format("part {} of {} parts of a digest", part, parts));
    Digest sum;
    std::vector<std::uint32_t> ids;
    for_blocks(tokens_.size(), sizeof(std::uint32_t), part, parts, [&](std::uint64_t i, std::int64_t begin, std::int64_t count) {
        ids.resize(static_cast<std::size_t>(count));
        read_tokens(begin, count, ids.data());
        sum = sum + block_digest(std::as_bytes(std::span(ids)), "tokens", i);
    });
    std::vector<std::uint8_t> mask;
    for_blocks(tokens_.size(), 1, part, parts, [&](std::uint64_t i, std::int64_t begin, std::int64_t count) {
        mask.resize(static_cast<std::size_t>(count));
        read_mask(begin, count, mask.data());
        sum = sum + block_digest(std::as_bytes(std::span(mask)), "loss_mask", i);
    });
    for_blocks(documents() + 1, sizeof(std::int64_t), part, parts, [&](std::uint64_t i, std::int64_t begin, std::int64_t count) {
        const std::span<const std::int64_t> all(offsets_);
        const auto block = all.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count));
        sum = sum + block_digest(std::as_bytes(block), "doc_offsets", i);
    });
    return sum;
}

}  // namespace sherd::detail
