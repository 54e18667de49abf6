#pragma once
/// Decks as text: the INI dialect of docs/deck.md, read with line numbers and written so that it reads back the same.
#include <filesystem>
#include <string>
#include <vector>

namespace sherd {

struct DeckEntry {
    std::string section, key, value;
    int line = 0;  ///< from 1
    std::string full_name() const { return section + "." + key; }
};

/// Whether a section or key that is not in the table is an error (a user's deck) or taken (a deck printed by another version).
enum class UnknownKeys { refused, taken };

/// Entries of a deck in the order of the text. `name` is the file's name in messages. Throws UsageError, naming deck and line, for what is
/// no INI, for a doubled key and for a section or key that nobody knows; values are not checked here.
std::vector<DeckEntry> parse_deck(const std::string& text, const std::string& name, UnknownKeys unknown = UnknownKeys::refused);

/// Reads and parses a deck file. Throws UsageError if it cannot be read, too.
std::vector<DeckEntry> read_deck(const std::filesystem::path& path);

/// The value as it must stand in a deck: in quotes where it would read back differently without.
std::string quoted_value(const std::string& value);

}  // namespace sherd
