#include "sherd/app/deck_file.hpp"
#include "sherd/runtime/error.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

using namespace sherd;

namespace {

/// Value of run.directory in a deck of one line after the section.
std::string directory_of(const std::string& line) {
    const auto entries = parse_deck("[run]\n" + line + "\n", "d.ini");
    return entries.size() == 1 && entries[0].full_name() == "run.directory" ? entries[0].value : "not one entry";
}

/// The message of the UsageError that a deck ends in; empty if it is taken.
std::string failure_of(const std::string& text) {
    try {
        parse_deck(text, "d.ini");
    } catch (const UsageError& error) {
        return error.what();
    }
    return "";
}

void expect_failure(const std::string& text, const std::vector<std::string>& parts) {
    const std::string message = failure_of(text);
    EXPECT_NE(message, "") << "taken: " << text;
    for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << "no '" << part << "' in: " << message;
}

}  // namespace

TEST(DeckFile, HashIsACommentOnlyAfterWhiteSpace) {
    EXPECT_EQ(directory_of("directory = /tmp/run#3"), "/tmp/run#3");
    EXPECT_EQ(directory_of("directory=#3"), "#3");
    EXPECT_EQ(directory_of("directory = /tmp/run#3 # the third"), "/tmp/run#3");
    EXPECT_EQ(directory_of("directory = /tmp/run\t#3"), "/tmp/run");
    EXPECT_EQ(directory_of("directory = a;b ;c"), "a;b ;c");
}

TEST(DeckFile, BlanksEqualsAndCommasBelongToTheValue) {
    EXPECT_EQ(directory_of("  directory\t=  /tmp/my runs/a=b,c==d  \t"), "/tmp/my runs/a=b,c==d");
    EXPECT_EQ(directory_of("directory==x"), "=x");
    EXPECT_EQ(directory_of("directory ="), "");
    EXPECT_EQ(directory_of("directory = it's"), "it's");
}

TEST(DeckFile, QuotesKeepEverything) {
    EXPECT_EQ(directory_of("directory = \" a #b; = \"  # comment"), " a #b; = ");
    EXPECT_EQ(directory_of("directory = 'say \"go\"'"), "say \"go\"");
    EXPECT_EQ(directory_of("directory = \"say \"\"go\"\"\""), "say \"go\"");
    EXPECT_EQ(directory_of("directory = ''"), "");
    EXPECT_EQ(directory_of("directory = 'it''s'"), "it's");
    EXPECT_EQ(directory_of("directory = \"back\\slash\\\""), "back\\slash\\");
}

TEST(DeckFile, BadQuotesNameLineAndColumn) {
    expect_failure("[run]\ndirectory = \"a", {"d.ini:2:", "column 13", "never closed"});
    expect_failure("[run]\ndirectory = \"a\" b", {"d.ini:2:", "'b'", "closing quote"});
    expect_failure("[run]\ndirectory = \"a\"#b", {"d.ini:2:", "closing quote"});
    // cut at the '#', or whole? neither: the user is asked
    expect_failure("[run]\ndirectory = /tmp/a \"b #c\"", {"d.ini:2:", "'#' in column 23", "quotes around the whole value"});
    expect_failure("[run]\ndirectory = #3", {"d.ini:2:", "'#'", "quotes"});
}

TEST(DeckFile, WindowsFilesAreFine) {
    const auto entries =
        parse_deck("\xEF\xBB\xBF[run]\r\n; note\r\n\r\nname = a b\r\nsteps = 3 # three\r\n[data]\r\ntokens=\"t\"\r\n", "d.ini");
    ASSERT_EQ(entries.size(), 3u);
    EXPECT_EQ(entries[0].value, "a b");
    EXPECT_EQ(entries[0].line, 4);
    EXPECT_EQ(entries[1].value, "3");
    EXPECT_EQ(entries[2].full_name(), "data.tokens");
    EXPECT_EQ(entries[2].value, "t");
    expect_failure(std::string("\xFF\xFE[\0r\0", 6), {"UTF-16", "UTF-8"});
    expect_failure(std::string("[run]\n\0", 7), {"no text file"});
}

TEST(DeckFile, LastLineNeedsNoEndAndEmptyIsFine) {
    EXPECT_EQ(parse_deck("[run]\nsteps = 3", "d.ini").size(), 1u);
    EXPECT_TRUE(parse_deck("", "d.ini").empty());
    EXPECT_TRUE(parse_deck("# nothing\n  ; here\n [ run ] # open\n[run] ; again\n", "d.ini").empty());
}

TEST(DeckFile, DoubledKeysNameBothLines) {
    expect_failure("[run]\nsteps = 1\n\nsteps = 1\n", {"d.ini:4:", "run.steps", "line 2"});
    expect_failure("[run]\nsteps = 1\n[data]\n[run]\nsteps = 2\n", {"d.ini:5:", "line 2"});
    expect_failure("[nccl]\nNCCL_DEBUG = INFO\nNCCL_DEBUG = WARN\n", {"d.ini:3:", "nccl.NCCL_DEBUG", "line 2"});
    EXPECT_EQ(failure_of("[checkpoint]\nevery = 1\n[evaluation]\nevery = 1\n"), "");
}

TEST(DeckFile, UnknownNamesComeWithTheNearest) {
    expect_failure("[run]\n\nstpes = 1\n", {"d.ini:3:", "run.stpes", "run.steps"});
    expect_failure("[optimizer]\nsteps = 1\n", {"d.ini:2:", "optimizer.steps", "run.steps"});
    expect_failure("[optimiser]\nbeta1 = 1\n", {"d.ini:1:", "[optimiser]", "[optimizer]"});
    expect_failure("[Run]\nsteps = 1\n", {"d.ini:1:", "[run]"});
    expect_failure("[nccl]\nDEBUG = INFO\n", {"d.ini:2:", "DEBUG", "NCCL_*"});
    expect_failure("steps = 3\n", {"d.ini:1:", "before the first [section]", "run.steps"});
}

TEST(DeckFile, WhatIsNoIniNamesItsLine) {
    expect_failure("[run\n", {"d.ini:1:", "']'"});
    expect_failure("[run] steps = 3\n", {"d.ini:1:", "steps = 3"});
    expect_failure("[run]\nsteps 3\n", {"d.ini:2:", "key = value", "steps 3"});
    expect_failure("[run]\n= 3\n", {"d.ini:2:", "no key"});
}

TEST(DeckFile, UnreadableFilesAreUsageErrors) {
    EXPECT_THROW(read_deck("/no/such/deck.ini"), UsageError);
    EXPECT_THROW(read_deck("/"), UsageError);
    EXPECT_THROW(read_deck("/dev/zero"), UsageError);
}

TEST(DeckFile, QuotedValuesReadBackTheSame) {
    for (const std::string value :
         {"plain", "a=b,c", "#3",           "a #b", "run#3", " lead", "trail ",      "\ttab", "it's", "\"",  "'",
          "\"'",   "'\"'",  "\"a\" 'b' #c", ";x",   "[run]", "=",     "back\\slash", "\"\"",  "''",   "ä ö", "a\"\"b''c"})
        EXPECT_EQ(directory_of("directory = " + quoted_value(value)), value) << quoted_value(value);
    for (const std::string plain : {"/tmp/run#3", "/tmp/my runs/a=b,c", "it's", "a;b"}) EXPECT_EQ(quoted_value(plain), plain);
}

TEST(DeckFile, AnyLineOfTheSpecialCharactersReadsBackOrIsRefused) {
    const std::string alphabet = "#\"' ;=[\t\\a";
    std::mt19937 random(7);
    for (int round = 0; round < 20000; ++round) {
        std::string value(random() % 9, ' ');
        for (char& c : value) c = alphabet[random() % alphabet.size()];
        ASSERT_EQ(directory_of("directory = " + quoted_value(value)), value) << quoted_value(value);
        try {  // as a line of its own it is an entry, nothing, or a sentence, never anything else
            parse_deck("[run]\n" + value + "\n" + value, "d.ini");
        } catch (const UsageError&) {
        }
    }
}
