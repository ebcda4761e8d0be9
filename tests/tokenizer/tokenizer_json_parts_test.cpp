// Each part of a tokenizer.json with BPE of characters: what it does to a text, and which values
// are errors.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"
#include "tokenizer/bpe_symbols.h"
#include "tokenizer/tokenizer.h"

namespace sparsellm {
namespace {

using nlohmann::json;
using testing::throws_error;
using Ids = std::vector<int32_t>;

// Like Llama 2: <unk> 0, <s> 1, bytes from 2 on, then ▁ 258, a 259, b 260, ▁a 261, ▁▁ 262.
json llama() {
  json vocabulary = {{"<unk>", 0}, {"<s>", 1}};
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary[byte_token(static_cast<uint8_t>(byte))] = 2 + byte;
  }
  vocabulary.update(
      {{"\u2581", 258}, {"a", 259}, {"b", 260}, {"\u2581a", 261}, {"\u2581\u2581", 262}});
  const auto added = [](int id, std::string_view content) {
    return json{{"id", id}, {"content", content}, {"normalized", false}, {"special", true}};
  };
  return {{"version", "1.0"},
          {"added_tokens", {added(0, "<unk>"), added(1, "<s>")}},
          {"normalizer",
           {{"type", "Sequence"},
            {"normalizers",
             {{{"type", "Prepend"}, {"prepend", "\u2581"}},
              {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}}}}},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders",
             {{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
              {{"type", "ByteFallback"}},
              {{"type", "Fuse"}},
              {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"vocab", vocabulary},
            {"merges", {"\u2581 a", "\u2581 \u2581"}}}}};
}

json metaspace(const json& values) {
  json node = {{"type", "Metaspace"}, {"replacement", "\u2581"}};
  node.update(values);
  return node;
}
json sequence(std::string_view key, const json& parts) {
  return {{"type", "Sequence"}, {key, parts}};
}
json with(json document, std::string_view pointer, const json& value) {
  document[json::json_pointer(std::string(pointer))] = value;
  return document;
}

std::unique_ptr<Tokenizer> load(const json& document) {
  const testing::TempDir folder;
  folder.write("tokenizer.json", document.dump());
  return load_tokenizer(folder.path());
}

Ids encode(const json& document, std::string_view text) {
  return load(document)->encode(text, {.parse_special = true});
}

TEST(TokenizerJsonParts, PrependIsInFrontOfEachPiece) {
  const json document = llama();
  EXPECT_EQ(encode(document, ""), (Ids{}));
  EXPECT_EQ(encode(document, "a b"), (Ids{261, 258, 260}));
  EXPECT_EQ(encode(document, " a"), (Ids{258, 261}));
  EXPECT_EQ(encode(document, "a<s>a<s> <s>"), (Ids{261, 1, 261, 1, 262, 1}));
  EXPECT_EQ(encode(document, "\u00e9"), (Ids{258, 2 + 0xc3, 2 + 0xa9}));
}

TEST(TokenizerJsonParts, Decoded) {
  const auto tokenizer = load(llama());
  EXPECT_TRUE(tokenizer->strips_leading_space());
  EXPECT_TRUE(tokenizer->replaces_each_byte());
  EXPECT_EQ(tokenizer->token_bytes(261), " a");
  EXPECT_EQ(tokenizer->first_token_bytes(261), "a");
  EXPECT_EQ(tokenizer->first_token_bytes(1), "");
  EXPECT_EQ(tokenizer->token_bytes(2 + 0xe9), "\xe9");
  EXPECT_EQ(tokenizer->max_token_bytes(), 6);
  EXPECT_EQ(decode(*tokenizer, {1, 262, 261, 2 + 0xc3, 2 + 0xa9}), "  a\u00e9");
  EXPECT_EQ(decode(*tokenizer, {2 + 0xe6, 2 + 0x97, 259}), "\ufffd\ufffda");
  EXPECT_EQ(decode(*tokenizer, {2 + 0xe6, 2 + 0x97}), "\ufffd\ufffd");
}

TEST(TokenizerJsonParts, MetaspaceSaysWhatIsPrepended) {
  struct Case {
    json values;
    Ids ids;           // of "a<s>a a"
    std::string text;  // of ▁▁ and ▁a
  };
  const Ids first{261, 1, 259, 261};
  const Ids always{261, 1, 261, 261};
  const Ids never{259, 1, 259, 261};
  const Case cases[] = {
      {{{"prepend_scheme", "first"}, {"split", false}}, first, " a"},
      {{{"prepend_scheme", "first"}}, first, " a"},
      {{{"prepend_scheme", "always"}, {"split", true}}, always, " a"},
      {{{"prepend_scheme", "never"}}, never, "   a"},
      // Older files.
      {{{"add_prefix_space", true}}, always, " a"},
      {{{"add_prefix_space", false}}, never, "   a"},
      {{{"add_prefix_space", true}, {"prepend_scheme", "first"}}, first, " a"},
      {{{"add_prefix_space", true}, {"prepend_scheme", "never"}}, never, "   a"},
      {{{"add_prefix_space", false}, {"prepend_scheme", "never"}}, never, "   a"},
      {json::object(), always, " a"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.values);
    json document = with(llama(), "/normalizer", nullptr);
    document["pre_tokenizer"] = metaspace(c.values);
    document["decoder"] = metaspace(c.values);
    const auto tokenizer = load(document);
    EXPECT_EQ(tokenizer->encode("a<s>a a", {.parse_special = true}), c.ids);
    EXPECT_EQ(decode(*tokenizer, {262, 261}), c.text);
  }
}

TEST(TokenizerJsonParts, WordsThatAreSplitAreNotMerged) {
  json document = with(llama(), "/normalizer", nullptr);
  document["pre_tokenizer"] = metaspace({{"split", true}});
  EXPECT_EQ(encode(document, "  a"), (Ids{258, 261}));
  document["pre_tokenizer"] = metaspace({{"split", false}});
  EXPECT_EQ(encode(document, "   b"), (Ids{262, 258, 260}));
  document["pre_tokenizer"] =
      sequence("pretokenizers", json::array({metaspace({{"split", false}}),
                                             {{"type", "Split"},
                                              {"pattern", {{"String", "\u2581"}}},
                                              {"behavior", "Removed"},
                                              {"invert", false}}}));
  EXPECT_EQ(encode(document, "a  b"), (Ids{259, 260}));
  EXPECT_EQ(load(document)->max_token_bytes(), std::nullopt);
}

TEST(TokenizerJsonParts, SequencesInSequences) {
  json document = llama();
  document["normalizer"] = sequence("normalizers", json::array({document["normalizer"]}));
  document["decoder"] = sequence("decoders", json::array({document["decoder"]}));
  document["pre_tokenizer"] = sequence("pretokenizers", json::array());
  EXPECT_EQ(encode(document, "a b"), (Ids{261, 258, 260}));
}

// An added token is looked for, and decoded, as it stands in a normalized text.
TEST(TokenizerJsonParts, NormalizedAddedTokens) {
  json document = llama();
  document["added_tokens"].push_back({{"id", 300}, {"content", "b b"}, {"normalized", true}});
  const auto tokenizer = load(document);
  EXPECT_EQ(tokenizer->encode("a b b", {}), (Ids{261, 300}));
  EXPECT_EQ(tokenizer->encode("ab b", {}), (Ids{261, 260, 258, 260}));
  EXPECT_EQ(decode(*tokenizer, {259, 300}), "a b b");
  EXPECT_EQ(decode(*tokenizer, {300}), "b b");
  EXPECT_EQ(tokenizer->max_token_bytes(), 8);
}

TEST(TokenizerJsonParts, Refused) {
  const json good = llama();
  const auto normalizer = [&](const json& value) { return with(good, "/normalizer", value); };
  const auto pre = [&](const json& value) { return with(good, "/pre_tokenizer", value); };
  const auto decoder = [&](const json& parts) {
    return with(good, "/decoder", sequence("decoders", parts));
  };
  const auto replace = [](const json& pattern, const json& content) {
    return json{{"type", "Replace"}, {"pattern", pattern}, {"content", content}};
  };
  const auto strip = [](const json& content, const json& start, const json& stop) {
    return json{{"type", "Strip"}, {"content", content}, {"start", start}, {"stop", stop}};
  };
  const json fuse = {{"type", "Fuse"}};
  const json bytes = {{"type", "ByteFallback"}};
  const json space = replace({{"String", "\u2581"}}, " ");
  json no_text = with(good, "/pre_tokenizer", metaspace({{"prepend_scheme", "first"}}));
  no_text["normalizer"] = replace({{"String", "x"}}, "");
  json few_bytes = good;
  few_bytes["model"]["vocab"].erase("<0x41>");
  struct Case {
    json document;
    std::string_view message;
  };
  const Case cases[] = {
      {with(good, "/model/type", "Unigram"), R"(model.type is "Unigram"; only "BPE" is supported)"},
      {with(good, "/model/type", "WordPiece"), R"(model.type is "WordPiece"; only "BPE")"},
      {with(good, "/model/type", "WordLevel"), R"(model.type is "WordLevel"; only "BPE")"},
      {few_bytes,
       R"(byte_fallback is true, but the vocabulary has tokens of 255 bytes only, and no)"},
      {with(good, "/model/merges/0", json::array({"a", "b"})), R"(needs the token "ab")"},

      {normalizer({{"type", "Lowercase"}}),
       R"(normalizer.type is "Lowercase"; only "NFC", "Replace", "Prepend" and a "Sequence" of)"},
      {normalizer(sequence("normalizers", {{{"type", "NFD"}}})),
       R"(normalizer.normalizers[0].type is "NFD"; only "NFC")"},
      {normalizer({{"type", "Sequence"}}), "normalizer.normalizers is missing"},
      {normalizer(json::object()), "normalizer.type is missing"},
      {normalizer(replace({{"Regex", " "}}, "")),
       R"(normalizer.pattern is an object; expected {"String": ...})"},
      {normalizer(replace(" ", "")), R"(normalizer.pattern is " "; expected an object)"},
      {normalizer(replace({{"String", ""}}, "x")),
       R"(normalizer.pattern.String is ""; an empty pattern is not supported)"},
      {normalizer(replace({{"String", "a"}}, 1)), "normalizer.content is 1; expected a string"},
      {normalizer(replace({{"String", "a"}}, std::string(1025, 'x'))),
       "at most 1024 bytes are supported"},
      {normalizer(replace({{"String", std::string(1025, 'x')}}, "")), "at most 1024 bytes"},
      {normalizer({{"type", "Prepend"}}), "normalizer.prepend is missing; expected a string"},
      {normalizer(sequence("normalizers", json(17, replace({{"String", "a"}}, "b")))),
       "at most 16 steps are supported"},
      {no_text,
       R"(normalizer removes text, which is not supported with the prepend_scheme "first")"},

      {pre({{"type", "Whitespace"}}),
       R"(pre_tokenizer.type is "Whitespace"; only "ByteLevel", "Metaspace", "Split", "Digits")"},
      {pre({{"type", "Metaspace"}}), "pre_tokenizer.replacement is missing"},
      {pre(sequence("pretokenizers", json(2, metaspace(json::object())))),
       R"(pretokenizers[1].type is "Metaspace"; only one "Metaspace" is supported)"},
      {pre(metaspace({{"replacement", ""}})), R"(replacement is ""; expected one character)"},
      {pre(metaspace({{"replacement", "ab"}})), R"(replacement is "ab"; expected one character)"},
      {pre(metaspace({{"prepend_scheme", "last"}})),
       R"(prepend_scheme is "last"; only "first", "always" and "never" are supported)"},
      {pre(metaspace({{"prepend_scheme", 1}})), "prepend_scheme is 1; expected a string"},
      {pre(metaspace({{"split", "no"}})), R"(split is "no"; expected true or false)"},
      {pre(metaspace({{"add_prefix_space", false}, {"prepend_scheme", "first"}})),
       R"(add_prefix_space is false; prepend_scheme is "first"; expected true)"},
      {pre({{"type", "Split"},
            {"pattern", {{"String", "a"}}},
            {"behavior", "Isolated"},
            {"invert", 1}}),
       "pre_tokenizer.invert is 1; expected true or false"},

      {with(good, "/decoder", nullptr), "decoder is null; without a decoder there are spaces"},
      {decoder(json::array({{{"type", "ByteLevel"}}})), R"(type is "ByteLevel"; only "Replace",)"},
      {decoder(json::array({{{"type", "WordPiece"}}})), R"(type is "WordPiece"; only "Replace",)"},
      {decoder(json::array({bytes, space})),
       R"(decoders[1].type is "Replace"; it is not supported after "ByteFallback" and "Fuse")"},
      {decoder(json::array({fuse, metaspace(json::object())})),
       R"(type is "Metaspace"; it is not)"},
      {decoder(json::array({fuse, bytes})), R"(type is "ByteFallback"; it is not supported after)"},
      {decoder(json::array({space, strip(" ", 1, 0)})),
       R"(decoders[1].type is "Strip"; it is supported only after "Fuse")"},
      {decoder(json::array({fuse, strip(" ", 2, 0)})), "start is 2; only one space in front"},
      {decoder(json::array({fuse, strip(" ", 1, 0), strip(" ", 1, 0)})), "start is 1; only one"},
      {decoder(json::array({fuse, strip(" ", 1, 1)})), "stop is 1; only 0 is supported"},
      {decoder(json::array({fuse, strip("_", 1, 0)})), R"(content is "_"; only " " is supported)"},
      {decoder(json::array({fuse, strip(" ", -1, 0)})), "start is -1"},
      {decoder(json::array({metaspace(json::object()), fuse, strip(" ", 1, 0)})),
       R"(it is not supported together with a "Metaspace" that prepends)"},
      {decoder(json::array({replace({{"String", "a"}}, "bc")})),
       R"(content is "bc"; only as many bytes as the pattern has are supported)"},
      {decoder(json(17, space)), "at most 16 of these steps are supported"},
      {decoder(json::array({replace({{"Regex", "a"}}, "b")})), R"(expected {"String": ...})"},
  };
  for (const Case& c : cases) {
    EXPECT_TRUE(throws_error([&] { load(c.document); }, c.message));
  }
  EXPECT_EQ(decode(*load(decoder(json::array({space, fuse, strip("_", 0, 0)}))), {261}), " a");
}

}  // namespace
}  // namespace sparsellm
