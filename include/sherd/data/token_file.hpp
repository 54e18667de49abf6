#pragma once
/// Token files (docs/formats.md): documents of token ids in HDF5, read in slices, never whole.
#include "sherd/io/digest.hpp"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace sherd {

/// One document as it is trained on: at most `max_sequence` tokens of what is stored.
struct Document {
    std::int64_t index = 0;               ///< in its group
    std::vector<std::int32_t> tokens;     ///< ids
    std::vector<std::uint8_t> is_target;  ///< 1 where tokens[i] is a target; [0] is always 0
    std::int64_t targets() const noexcept;
};

/// What one streaming pass over a group finds (TokenGroup::scan).
struct GroupFacts {
    std::int64_t documents = 0, tokens = 0, targets = 0;  ///< tokens and targets after cutting at max_sequence
    std::int64_t longest = 0, longest_index = 0;          ///< after cutting
    std::int64_t cut_documents = 0, cut_tokens = 0;       ///< documents longer than max_sequence, and the tokens left out
    std::int64_t over_positions = 0;                      ///< documents longer than max_positions after cutting
};

/// One group (`train` or `validation`) of a token file. Reads may come from one thread at a time.
class TokenGroup {
  public:
    virtual ~TokenGroup() = default;
    virtual const std::string& name() const = 0;
    virtual std::int64_t documents() const = 0;
    /// Tokens of document i after cutting at max_sequence.
    virtual std::int64_t length(std::int64_t i) const = 0;
    /// Throws InputError: no such document, the file cannot be read.
    virtual Document read(std::int64_t i) const = 0;
    /// One streaming pass over tokens and mask that checks every id against `vocabulary` and counts. Throws InputError naming file,
    /// dataset, index, value and limit: an id >= vocabulary or >= the file's vocab_size, a mask value above 1, a group without any target.
    /// max_positions 0: no limit.
    virtual GroupFacts scan(std::int64_t vocabulary, std::int64_t max_positions) const = 0;
    /// Digest of tokens, offsets and mask as stored (an absent mask is one of ones), whatever the file's layout, integer widths and path:
    /// the sum over all `parts` of what each part finds in its own blocks of 4 MiB. max_sequence plays no role.
    virtual Digest digest(std::int64_t part, std::int64_t parts) const = 0;
};

/// An open token file. The constructor checks structure: kind, version, types, offsets that rise from 0 to n, mask length, no empty
/// document.
class TokenFile {
  public:
    /// Decompressed chunks kept in memory, over all datasets of a file; a single larger chunk is kept all the same.
    static constexpr std::uint64_t default_cache_bytes = std::uint64_t{256} << 20;

    /// max_sequence 0: no limit. Throws InputError naming file, dataset, index and what was expected. Warns once where a shuffled read
    /// would decompress large chunks again and again, because they do not fit into `cache_bytes`.
    TokenFile(const std::filesystem::path& path, std::int64_t max_sequence, std::uint64_t cache_bytes = default_cache_bytes);
    ~TokenFile();
    TokenFile(TokenFile&&) noexcept;
    std::int64_t vocabulary() const noexcept;  ///< attribute vocab_size; -1 if absent
    const TokenGroup& train() const;
    const TokenGroup* validation() const;  ///< nullptr where the group is absent or has no document

  private:
    struct Implementation;
    std::unique_ptr<Implementation> self_;
};

}  // namespace sherd
