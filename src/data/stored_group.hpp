#pragma once
/// A group of an open token file.
#include "data/dataset_reader.hpp"

#include "sherd/data/token_file.hpp"

#include <memory>
#include <string>
#include <vector>

namespace sherd::detail {

/// What the groups of one file share. Must outlive them.
struct OpenTokenFile {
    io::HdfFile file;
    ReadOnlyFile raw;
    ChunkCache cache;
    std::int64_t vocabulary;    ///< attribute vocab_size; -1 if absent
    std::int64_t max_sequence;  ///< 0: no limit
};

/// TokenGroup over datasets GROUP/tokens, GROUP/doc_offsets and GROUP/loss_mask. Holds the offsets, 8 bytes a document.
class StoredGroup final : public TokenGroup {
  public:
    /// Checks types, shapes and offsets. Throws InputError naming file, dataset, index, value and what was expected.
    StoredGroup(OpenTokenFile& file, std::string name);

    const std::string& name() const override { return name_; }
    std::int64_t documents() const override { return static_cast<std::int64_t>(offsets_.size()) - 1; }
    std::int64_t length(std::int64_t i) const override;
    Document read(std::int64_t i) const override;
    GroupFacts scan(std::int64_t vocabulary, std::int64_t max_positions) const override;
    Digest digest(std::int64_t part, std::int64_t parts) const override;

    /// The datasets that are read document by document.
    std::vector<const DatasetReader*> streams() const;

  private:
    void load_offsets(const DatasetReader& stored);
    std::int64_t offset(std::int64_t i) const { return offsets_[static_cast<std::size_t>(i)]; }
    /// Tokens [begin, begin + count) as 32-bit values.
    void read_tokens(std::int64_t begin, std::int64_t count, std::uint32_t* out) const;
    /// Mask [begin, begin + count) as stored; ones where there is none.
    void read_mask(std::int64_t begin, std::int64_t count, std::uint8_t* out) const;
    GroupFacts facts_of_lengths(std::int64_t max_positions) const;
    void check_ids(const std::vector<std::uint32_t>& ids, std::int64_t begin, std::int64_t vocabulary) const;
    void check_mask(const std::vector<std::uint8_t>& mask, std::int64_t begin) const;

    const OpenTokenFile& file_;
    std::string name_;
    DatasetReader tokens_;
    std::unique_ptr<DatasetReader> mask_;  ///< null: every token but a document's first is a target
    std::vector<std::int64_t> offsets_;
};

}  // namespace sherd::detail
