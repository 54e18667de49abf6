#include "io_scratch.hpp"

#include "sherd/io/json.hpp"

#include <nlohmann/json.hpp>

using namespace sherd;
using io::parse_json;
using sherd::testing::expect_error;

TEST(Json, ReadsEveryKindOfValue) {
    const auto json = parse_json(R"({"a": [1, -2, 1.5e3, true, false, null], "b": {"c": "x"}, "": 18446744073709551615})", "f");
    EXPECT_EQ(json, nlohmann::json::parse(R"({"a": [1, -2, 1500.0, true, false, null], "b": {"c": "x"}, "": 18446744073709551615})"));
    EXPECT_TRUE(json["a"][0].is_number_integer());
    EXPECT_TRUE(json["a"][2].is_number_float());
}

TEST(Json, TakesWhatPythonAndEditorsWrite) {
    const auto json = parse_json("\xef\xbb\xbf{\"limit\": [0.0, Infinity, -Infinity, NaN, 1e999]}\r\n", "f");
    EXPECT_EQ(json["limit"].dump(), "[0.0,null,null,null,null]");
}

TEST(Json, DecodesEscapes) {
    EXPECT_EQ(parse_json(R"("\u00e9\ud83d\ude00\n\"\\\/")", "f").get<std::string>(), "\xc3\xa9\xf0\x9f\x98\x80\n\"\\/");
}

TEST(Json, ErrorsNameFileLineColumnAndToken) {
    expect_error([] { parse_json("{\n  \"a\": 1,\n  \"b\": nope\n}", "config.json"); }, "config.json:3:8: ", "'nope'");
    expect_error([] { parse_json("{\"a\": [1, 2", "config.json"); }, "config.json:1:12: ", "the end of the file");
    expect_error([] { parse_json("\xef\xbb\xbf{,", "config.json"); }, "config.json:1:2: ", "','");
    expect_error([] { parse_json("{\"a\": 1,\n\"a\": 2}", "config.json"); }, "config.json:2:1: ", "'a' stands here a second time");
}

TEST(Json, RefusesWhatIsNoJson) {
    for (const char* text : {"",
                             "{",
                             "[1,]",
                             "{\"a\":1,}",
                             "{a:1}",
                             "01",
                             "1.",
                             "-",
                             "+1",
                             ".5",
                             "1e",
                             "tru",
                             "\"abc",
                             "\"\\x\"",
                             "\"\\u12g4\"",
                             "\"\\ud800\"",
                             "\"\\ud800\\u0041\"",
                             "{} {}",
                             "'a'",
                             "\"a\nb\"",
                             "\"\xff\"",
                             "\"\xc0\x80\"",
                             "\"\xed\xa0\x80\"",
                             "\"\xf4\x90\x80\x80\"",
                             "\"\xe2\x82"})
        expect_error([&] { parse_json(text, "f"); }, "f:1:");
}

TEST(Json, DeepNestingIsAnErrorAndNoCrash) {
    expect_error([] { parse_json(std::string(1'000'000, '['), "f"); }, "nested more than");
    EXPECT_NO_THROW(parse_json(std::string(150, '[') + std::string(150, ']'), "f"));
}
