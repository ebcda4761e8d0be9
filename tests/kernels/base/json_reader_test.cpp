#include "kernels/base/json_reader.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using nlohmann::json;
using testing::TempDir;
using testing::throws_error;

json parse(std::string_view text, int max_depth = 8) {
  return parse_json(text, "file.json", max_depth).root();
}

TEST(ParseJson, ReadsEveryKindOfValue) {
  const json document = parse(
      " {\"null\": null, \"flags\": [true, false], \"text\": \"a\\u00e9\\n\", \"empty\": {},"
      " \"numbers\": [0, -1, 1.5, -2e3, 9223372036854775807, -9223372036854775808,"
      " 18446744073709551615]}\n");
  EXPECT_TRUE(document.at("null").is_null());
  EXPECT_EQ(document.at("flags"), json::array({true, false}));
  EXPECT_EQ(document.at("text"), "a\u00e9\n");
  EXPECT_EQ(document.at("empty"), json::object());
  const json& numbers = document.at("numbers");
  EXPECT_EQ(numbers.size(), 7u);
  EXPECT_EQ(numbers[1].get<int64_t>(), -1);
  EXPECT_EQ(numbers[2].get<double>(), 1.5);
  EXPECT_EQ(numbers[3].get<double>(), -2000.0);
  EXPECT_EQ(numbers[4].get<int64_t>(), INT64_MAX);
  EXPECT_EQ(numbers[5].get<int64_t>(), INT64_MIN);
  EXPECT_EQ(numbers[6].get<uint64_t>(), UINT64_MAX);
  for (const char* text : {"null", "true", "-7", "0.25", "\"text\"", "[]", "{}", "[[], {}, [1]]",
                           R"({"a": {"b": [{"c": 1}, 2]}, "d": 3})"}) {
    EXPECT_EQ(parse(text), json::parse(text)) << text;
  }
}

TEST(ParseJson, RefusesWhatIsNotJson) {
  struct Case {
    std::string_view text;
    std::string_view message;
  };
  const Case cases[] = {
      {"", "file.json: invalid JSON at byte 1"},
      {"  ", "invalid JSON at byte"},
      {"{", "invalid JSON at byte"},
      {"nonsense", "invalid JSON at byte"},
      {"{} {}", "invalid JSON at byte"},
      {"[1,]", "invalid JSON at byte"},
      {"[1}", "invalid JSON at byte"},
      {R"({"a"})", "invalid JSON at byte"},
      {"{a: 1}", "invalid JSON at byte"},
      {"// comment\n1", "invalid JSON at byte"},
      {"\"two\nlines\"", "invalid JSON at byte"},
      {"\"\xff\"", "invalid JSON at byte"},
      {"\"\xed\xa0\x80\"", "invalid JSON at byte"},  // a surrogate
      {R"("\ud800")", "invalid JSON at byte"},
      {std::string_view("1\0", 2), "invalid JSON at byte 1"},
      {std::string_view("\"a\0b\"", 5), "invalid JSON at byte 2"},
      {"NaN", "invalid JSON at byte"},
      {"[Infinity]", "invalid JSON at byte"},
      {"[1e999]", "number out of range at byte"},
      {"[-1e999]", "number out of range at byte"},
  };
  for (const Case& c : cases) {
    EXPECT_TRUE(throws_error([&] { parse(c.text); }, c.message)) << c.text;
  }
}

TEST(ParseJson, RefusesAKeyThatIsThereTwice) {
  EXPECT_TRUE(throws_error([] { parse(R"({"a": 1, "b": 2, "a": 1})"); },
                           R"(file.json: the key "a" is there twice)"));
  EXPECT_TRUE(throws_error([] { parse(R"([{"x": {"\n": 1, "\u000a": {}}}])"); },
                           R"(the key "\n" is there twice)"));
  EXPECT_NO_THROW(parse(R"({"a": {"a": 1}, "b": [{"a": 1}, {"a": 1}], "": 1})"));
}

TEST(ParseJson, BoundsTheDepth) {
  EXPECT_NO_THROW(parse("1", 0));
  EXPECT_TRUE(throws_error([] { parse("[]", 0); }, "nested more than 0 levels deep"));
  EXPECT_NO_THROW(parse(R"([{"a": [1]}, [[]]])", 3));
  EXPECT_TRUE(throws_error([] { parse(R"([{"a": [{}]}])", 3); },
                           "file.json: the JSON is nested more than 3 levels deep"));
  EXPECT_TRUE(throws_error([] { parse(std::string(1'000'000, '[')); }, "nested more than 8"));
}

TEST(ReadJsonFile, NamesThePath) {
  const TempDir folder;
  const auto path = folder.write("a.json", R"({"a": [1]})");
  EXPECT_EQ(read_json_file(path, 100, 2).root(), json::parse(R"({"a": [1]})"));
  EXPECT_NO_THROW(read_json_file(path, 10, 2));
  EXPECT_TRUE(throws_error([&] { read_json_file(path, 9, 2); }, path.string() + " has 10 bytes"));
  EXPECT_TRUE(throws_error([&] { read_json_file(path, 100, 1); },
                           path.string() + ": the JSON is nested more than 1 levels deep"));
  EXPECT_TRUE(throws_error([&] { read_json_file(folder.path() / "b.json", 100, 2); }, "b.json"));
  EXPECT_TRUE(throws_error([&] { read_json_file(folder.write("c.json", "{"), 100, 2); },
                           "c.json: invalid JSON at byte"));
}

TEST(Quote, IsOneShortLineOfAscii) {
  struct Case {
    std::string text;
    std::string shown;
  };
  const Case cases[] = {
      {"", R"("")"},
      {"model.layers.0", R"("model.layers.0")"},
      {"a\"b\\c", R"("a\"b\\c")"},
      {"a\nb\t\x1b[0m", R"("a\nb\t\u001b[0m")"},
      {"\u00e9\U0001f600", R"("\u00e9\ud83d\ude00")"},
      {"\xff", R"("\ufffd")"},
      {std::string("a\0b", 3), R"("a\u0000b")"},
      {std::string(100, 'x'), '"' + std::string(100, 'x') + '"'},
      {std::string(101, 'x'), '"' + std::string(100, 'x') + "\"..."},
      {std::string(99, 'x') + "\u00e9", '"' + std::string(99, 'x') + "\\ufffd\"..."},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(quote(c.text), c.shown);
  }
}

// One member per kind of value.
json kinds() {
  return parse(R"({"absent_is": "not here", "null": null, "flag": true, "number": 1.5,
                   "whole": 7, "text": "abc", "list": [1, "two", [3]], "object": {"a": 1}})");
}

TEST(JsonValue, KnowsItsKind) {
  const json document = kinds();
  const JsonValue root(document, "file.json");
  struct Case {
    std::string_view key;
    bool present, null, string, array, object;
  };
  const Case cases[] = {
      {"absent", false, false, false, false, false}, {"null", false, true, false, false, false},
      {"flag", true, false, false, false, false},    {"number", true, false, false, false, false},
      {"whole", true, false, false, false, false},   {"text", true, false, true, false, false},
      {"list", true, false, false, true, false},     {"object", true, false, false, false, true},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.key);
    const JsonValue value = root[c.key];
    EXPECT_EQ(value.present(), c.present);
    EXPECT_EQ(value.is_null(), c.null);
    EXPECT_EQ(value.is_string(), c.string);
    EXPECT_EQ(value.is_array(), c.array);
    EXPECT_EQ(value.is_object(), c.object);
  }
}

TEST(JsonValue, NamesArePaths) {
  const json document = parse(R"({"a": {"b_C": [[{"d": 1}]], "<s>": {"x": 1}, "x1": 1},
                                  "<s>": 1, "list": [1]})");
  const JsonValue root(document, "file.json");
  EXPECT_EQ(root.name(), "file.json");
  EXPECT_EQ(root["a"].name(), "file.json: a");
  EXPECT_EQ(root["a"]["b_C"].name(), "file.json: a.b_C");
  EXPECT_EQ(root["a"]["b_C"].element(0).element(0)["d"].name(), "file.json: a.b_C[0][0].d");
  EXPECT_EQ(root["a"]["<s>"]["x"].name(), R"(file.json: a["<s>"].x)");
  EXPECT_EQ(root["a"]["x1"].name(), R"(file.json: a["x1"])");
  EXPECT_EQ(root["a"][""].name(), R"(file.json: a[""])");
  EXPECT_EQ(root["a"]["b.c"].name(), R"(file.json: a["b.c"])");
  EXPECT_EQ(root["a"]["\n\u00e9"].name(), R"(file.json: a["\n\u00e9"])");
  EXPECT_EQ(root["<s>"].name(), R"(file.json: ["<s>"])");
  EXPECT_EQ(root["list"].element(3).name(), "file.json: list[3]");
  const std::string word(80, 'x');
  EXPECT_EQ(root[word].name(), "file.json: " + word);
  EXPECT_EQ(root[word + "x"].name(), "file.json: [\"" + word + "x\"]");
  EXPECT_LT(root[std::string(100'000, 'x')].name().size(), 200u);

  const json list = json::array({json::array({1})});
  EXPECT_EQ(JsonValue(list, "file.json").element(0).element(0).name(), "file.json: [0][0]");

  const JsonValue renamed = root["a"].named("tensor \"a\"");
  EXPECT_EQ(renamed.name(), "tensor \"a\"");
  EXPECT_EQ(renamed["x"].name(), "tensor \"a\": x");
  EXPECT_EQ(renamed["<s>"]["x"].integer(0, 9), 1);
  EXPECT_TRUE(throws_error([&] { root["none"].named("it").string(); }, "it is missing; expected"));
}

TEST(JsonValue, Members) {
  const json document = kinds();
  const JsonValue root(document, "file.json");
  EXPECT_EQ(root["object"].keys(), std::vector<std::string>{"a"});
  EXPECT_EQ(root.keys().size(), 8u);
  EXPECT_EQ(root["object"]["a"].integer(0, 9), 1);
  EXPECT_FALSE(root["object"]["b"].present());
  EXPECT_NO_THROW(root["object"].allow_only({"a", "b"}));
  EXPECT_TRUE(throws_error(
      [&] {
        root["object"].allow_only({"b", "c"});
      },
      R"(file.json: object has the unknown key "a"; known are b, c)"));
  struct Case {
    std::string_view key;
    std::string_view message;
  };
  const Case cases[] = {
      {"absent", "file.json: absent is missing; expected an object"},
      {"null", "file.json: null is null; expected an object"},
      {"flag", "file.json: flag is true; expected an object"},
      {"number", "file.json: number is 1.5; expected an object"},
      {"text", R"(file.json: text is "abc"; expected an object)"},
      {"list", "file.json: list is an array; expected an object"},
  };
  for (const Case& c : cases) {
    const JsonValue value = root[c.key];
    EXPECT_TRUE(throws_error([&] { value["a"]; }, c.message));
    EXPECT_TRUE(throws_error([&] { value.keys(); }, c.message));
    EXPECT_TRUE(throws_error([&] { value.allow_only({}); }, c.message));
    EXPECT_TRUE(throws_error([&] { value.string_map(); }, c.message));
    EXPECT_TRUE(throws_error([&] { value.integer_map(0, 9); }, c.message));
  }
}

TEST(JsonValue, Elements) {
  const json document = kinds();
  const JsonValue root(document, "file.json");
  const JsonValue list = root["list"];
  ASSERT_EQ(list.size(), 3);
  EXPECT_EQ(list.element(0).integer(0, 9), 1);
  EXPECT_EQ(list.element(1).string(), "two");
  EXPECT_EQ(list.element(2).size(), 1);
  for (int64_t index : {int64_t{-1}, int64_t{3}, INT64_MIN, INT64_MAX}) {
    EXPECT_FALSE(list.element(index).present());
    EXPECT_FALSE(list.element(index).is_null());
  }
  EXPECT_TRUE(throws_error([&] { list.element(3).string(); },
                           "file.json: list[3] is missing; expected a string"));
  for (const char* key : {"absent", "null", "text", "object"}) {
    EXPECT_TRUE(throws_error([&] { root[key].size(); }, "; expected an array"));
    EXPECT_TRUE(throws_error([&] { root[key].element(0); }, "; expected an array"));
  }
}

TEST(JsonValue, Integers) {
  const json document = parse(
      R"({"a": 7, "min": -9223372036854775808, "max": 9223372036854775807,
          "over": 9223372036854775808, "real": 7.0, "null": null, "flag": true, "text": "7"})");
  const JsonValue root(document, "file.json");
  EXPECT_EQ(root["a"].integer(7, 7), 7);
  EXPECT_EQ(root["min"].integer(INT64_MIN, INT64_MAX), INT64_MIN);
  EXPECT_EQ(root["max"].integer(INT64_MIN, INT64_MAX), INT64_MAX);
  EXPECT_EQ(root["a"].integer(0, 9, 5), 7);
  EXPECT_EQ(root["null"].integer(0, 9, 50), 50);
  EXPECT_EQ(root["absent"].integer(0, 9, -1), -1);
  EXPECT_TRUE(throws_error([&] { root["a"].integer(8, 9); },
                           "file.json: a is 7; expected an integer from 8 to 9"));
  EXPECT_TRUE(throws_error([&] { root["a"].integer(0, 6, 5); }, "a is 7; expected"));
  EXPECT_TRUE(throws_error([&] { root["absent"].integer(0, 9); }, "absent is missing"));
  EXPECT_TRUE(throws_error([&] { root["null"].integer(0, 9); }, "null is null"));
  for (const char* key : {"over", "real", "flag", "text"}) {
    EXPECT_TRUE(throws_error([&] { root[key].integer(INT64_MIN, INT64_MAX, 0); },
                             "; expected an integer from"));
  }
}

TEST(JsonValue, Numbers) {
  const json document =
      parse(R"({"half": 0.5, "whole": 2, "huge": 1e300, "null": null, "flag": true, "text": "1"})");
  const JsonValue root(document, "file.json");
  constexpr float kMax = std::numeric_limits<float>::max();
  EXPECT_EQ(root["half"].number(0.5f, 0.5f), 0.5f);
  EXPECT_EQ(root["whole"].number(0.0f, 2.0f), 2.0f);
  EXPECT_EQ(root["null"].number(0.0f, 1.0f, 3.0f), 3.0f);
  EXPECT_EQ(root["absent"].number(0.0f, 1.0f, -3.0f), -3.0f);
  EXPECT_TRUE(throws_error([&] { root["half"].number(0.0f, 0.25f); },
                           "file.json: half is 0.5; expected a number from 0 to 0.25"));
  EXPECT_TRUE(throws_error([&] { root["huge"].number(0.0f, kMax); }, "huge is 1e+300"));
  EXPECT_TRUE(throws_error([&] { root["absent"].number(0.0f, kMax); }, "absent is missing"));
  for (const char* key : {"flag", "text"}) {
    EXPECT_TRUE(throws_error([&] { root[key].number(0.0f, kMax, 1.0f); }, "; expected a number"));
  }
}

TEST(JsonValue, BooleansAndStrings) {
  const json document = kinds();
  const JsonValue root(document, "file.json");
  EXPECT_TRUE(root["flag"].boolean());
  EXPECT_TRUE(root["flag"].boolean(false));
  EXPECT_TRUE(root["null"].boolean(true));
  EXPECT_FALSE(root["absent"].boolean(false));
  EXPECT_TRUE(throws_error([&] { root["absent"].boolean(); }, "absent is missing; expected true"));
  EXPECT_TRUE(throws_error([&] { root["whole"].boolean(true); },
                           "file.json: whole is 7; expected true or false"));
  EXPECT_EQ(root["text"].string(), "abc");
  EXPECT_TRUE(throws_error([&] { root["null"].string(); }, "null is null; expected a string"));
  EXPECT_TRUE(throws_error([&] { root["object"].string(); }, "object is an object; expected a st"));
}

TEST(JsonValue, ListsAndMapsOfOneKind) {
  const json document = parse(R"({"integers": [3, -1, 3], "strings": ["b", "a", ""], "none": [],
      "mixed": [1, "a"], "texts": {"x": "1", "<s>": "2"}, "ids": {"a": 0, "<s>": 9}, "empty": {},
      "bad_text": {"<s>": [1]}, "null_id": {"<s>": null}, "real_id": {"a": 1.0}})");
  const JsonValue root(document, "file.json");
  EXPECT_EQ(root["integers"].integers(-1, 3), (std::vector<int64_t>{3, -1, 3}));
  EXPECT_EQ(root["none"].integers(0, 0), std::vector<int64_t>{});
  EXPECT_EQ(root["strings"].strings(), (std::vector<std::string>{"b", "a", ""}));
  EXPECT_EQ(root["none"].strings(), std::vector<std::string>{});
  EXPECT_EQ(root["texts"].string_map(),
            (std::map<std::string, std::string>{{"x", "1"}, {"<s>", "2"}}));
  EXPECT_EQ(root["ids"].integer_map(0, 9),
            (std::unordered_map<std::string, int32_t>{{"a", 0}, {"<s>", 9}}));
  EXPECT_TRUE(root["empty"].string_map().empty());
  EXPECT_TRUE(root["empty"].integer_map(0, 9).empty());

  EXPECT_TRUE(throws_error([&] { root["integers"].integers(0, 3); },
                           "file.json: integers holds -1; expected integers from 0 to 3"));
  EXPECT_TRUE(throws_error([&] { root["mixed"].integers(0, 3); }, R"(mixed holds "a"; expected)"));
  EXPECT_TRUE(throws_error([&] { root["mixed"].strings(); }, "mixed holds 1; expected strings"));
  EXPECT_TRUE(throws_error([&] { root["ids"].integers(0, 3); },
                           "ids is an object; expected an array of integers"));
  EXPECT_TRUE(throws_error([&] { root["absent"].strings(); },
                           "absent is missing; expected an array of strings"));
  EXPECT_TRUE(throws_error([&] { root["bad_text"].string_map(); },
                           R"(file.json: bad_text["<s>"] is an array; expected a string)"));
  EXPECT_TRUE(throws_error([&] { root["ids"].integer_map(0, 8); },
                           R"(file.json: ids["<s>"] is 9; expected an integer from 0 to 8)"));
  EXPECT_TRUE(throws_error([&] { root["ids"].integer_map(1, 9); }, "ids.a is 0; expected"));
  EXPECT_TRUE(throws_error([&] { root["null_id"].integer_map(0, 9); }, R"(["<s>"] is null)"));
  EXPECT_TRUE(throws_error([&] { root["real_id"].integer_map(0, 9); }, "real_id.a is 1.0"));
}

TEST(JsonValue, RefuseShowsTheValueShortened) {
  const json document = parse("{\"text\": \"" + std::string(100'000, 'x') + "\"}");
  const JsonValue root(document, "file.json");
  EXPECT_TRUE(throws_error([&] { root["text"].refuse("only null is supported"); },
                           "xxx\"...; only null is supported"));
}

}  // namespace
}  // namespace sparsellm
