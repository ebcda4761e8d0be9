// load_tokenizer on directories of files, good and hostile.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/tokenizer.h"

namespace sparsellm {
namespace {

using nlohmann::json;
using testing::TempDir;
using testing::throws_error;
using Ids = std::vector<int32_t>;
using Files = std::vector<std::pair<std::string, std::string>>;

std::unique_ptr<Tokenizer> load_files(const Files& files) {
  const TempDir folder;
  for (const auto& [name, text] : files) {
    folder.write(name, text);
  }
  return load_tokenizer(folder.path());
}

Ids encode(const Tokenizer& tokenizer, std::string_view text, bool parse_special = false) {
  return tokenizer.encode(text, {.add_special_tokens = false, .parse_special = parse_special});
}

// Every byte with its value as id, "ab" 256, "abc" 257, "\u0120a" 258.
json vocabulary() {
  json vocab;
  for (int byte = 0; byte < 256; ++byte) {
    vocab[byte_symbol(static_cast<uint8_t>(byte))] = byte;
  }
  vocab["ab"] = 256;
  vocab["abc"] = 257;
  vocab["\u0120a"] = 258;
  return vocab;
}

json added(int64_t id, std::string_view content, bool special) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

json byte_level() {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", true}};
}

json template_processing(const json& single) {
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", json::array()},
          {"special_tokens",
           {{"<s>", {{"id", "<s>"}, {"ids", {259}}, {"tokens", {"<s>"}}}},
            {"</s>", {{"id", "</s>"}, {"ids", {260}}, {"tokens", {"</s>"}}}}}}};
}
json special_piece(std::string_view name) {
  return {{"SpecialToken", {{"id", name}, {"type_id", 0}}}};
}
json text_piece(std::string_view name) { return {{"Sequence", {{"id", name}, {"type_id", 0}}}}; }

// A tokenizer.json with <s> 259 and </s> 260 and without a post-processor.
json tokenizer_json() {
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", {added(259, "<s>", true), added(260, "</s>", true)}},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level()},
          {"post_processor", nullptr},
          {"decoder", byte_level()},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", ""},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"vocab", vocabulary()},
            {"merges", {"a b", "ab c", "\u0120 a"}}}}};
}

// A copy with the value at a JSON pointer replaced.
json with(json document, std::string_view pointer, const json& value) {
  document[json::json_pointer(std::string(pointer))] = value;
  return document;
}
json without(json document, std::string_view parent, std::string_view key) {
  document[json::json_pointer(std::string(parent))].erase(std::string(key));
  return document;
}

std::unique_ptr<Tokenizer> load_json(const json& tokenizer, const json& config = nullptr) {
  Files files = {{"tokenizer.json", tokenizer.dump()}};
  if (!config.is_null()) {
    files.emplace_back("tokenizer_config.json", config.dump());
  }
  return load_files(files);
}

constexpr std::string_view kMerges = "#version: 0.2\na b\nab c\n\u0120 a\n";

Files opt_files(const json& vocab, std::string_view merges, const json& config = nullptr) {
  Files files = {{"vocab.json", vocab.dump()}, {"merges.txt", std::string(merges)}};
  if (!config.is_null()) {
    files.emplace_back("tokenizer_config.json", config.dump());
  }
  return files;
}

json opt_vocabulary() {
  json vocab = vocabulary();
  vocab["<s>"] = 259;
  vocab["</s>"] = 260;
  vocab["<pad>"] = 261;
  return vocab;
}

TEST(TokenizerFiles, WhichFileIsTaken) {
  EXPECT_TRUE(throws_error([] { load_files(Files{}); },
                           "has no tokenizer: neither tokenizer.model nor tokenizer.json nor "
                           "vocab.json"));
  EXPECT_TRUE(throws_error([] { load_tokenizer("/no/such/folder"); }, "/no/such/folder"));
  Files files = opt_files(vocabulary(), kMerges);
  EXPECT_EQ(load_files(files)->vocab_size(), 259);
  files.emplace_back("tokenizer.json", tokenizer_json().dump());
  EXPECT_EQ(load_files(files)->vocab_size(), 261);
  files.emplace_back("tokenizer.model", "");
  EXPECT_TRUE(
      throws_error([&] { load_files(files); }, "tokenizer.model: not a SentencePiece model"));
}

TEST(TokenizerJson, EncodesAndDecodes) {
  const auto tokenizer = load_json(tokenizer_json());
  EXPECT_EQ(tokenizer->vocab_size(), 261);
  EXPECT_EQ(tokenizer->bos_id(), std::nullopt);
  EXPECT_EQ(tokenizer->eos_id(), std::nullopt);
  EXPECT_FALSE(tokenizer->strips_leading_space());
  EXPECT_EQ(tokenizer->encode("abc a", {}), (Ids{257, 258}));
  EXPECT_EQ(encode(*tokenizer, "<s>a"), (Ids{'<', 's', '>', 'a'}));
  EXPECT_EQ(encode(*tokenizer, "<s>a", true), (Ids{259, 'a'}));
  EXPECT_EQ(decode(*tokenizer, {259, 257, 258, 0xc3, 0xaf, 260}), "abc a\u00ef");
  EXPECT_EQ(tokenizer->token_bytes(258), " a");
  EXPECT_EQ(tokenizer->token_bytes(259), "");
  EXPECT_EQ(tokenizer->token_bytes(259, true), "<s>");
  for (int32_t id : {-1, 261, INT32_MIN, INT32_MAX}) {
    EXPECT_EQ(tokenizer->token_bytes(id, true), "") << id;
  }
  EXPECT_EQ(decode(*tokenizer, {257, 261, -1, 258}), "abc a");
  EXPECT_TRUE(throws_error([&] { encode(*tokenizer, "ab\xf0\x9f"); }, "invalid UTF-8 at byte 2"));
}

TEST(TokenizerJson, MergesAsListsOfTwo) {
  const json merges = json::array({json::array({"a", "b"}), json::array({"ab", "c"})});
  EXPECT_EQ(encode(*load_json(with(tokenizer_json(), "/model/merges", merges)), "abc a"),
            (Ids{257, ' ', 'a'}));
}

TEST(TokenizerJson, PreTokenizers) {
  const auto split = [](std::string_view pattern) {
    return json{{"type", "Split"},
                {"pattern", {{"Regex", pattern}}},
                {"behavior", "Isolated"},
                {"invert", false}};
  };
  const auto sequence = [](const json& parts) {
    return json{{"type", "Sequence"}, {"pretokenizers", parts}};
  };
  json plain = byte_level();
  plain["use_regex"] = false;
  json prefix = byte_level();
  prefix["add_prefix_space"] = true;
  json old = byte_level();
  old.erase("use_regex");
  struct Case {
    json pre_tokenizer;
    Ids ids;  // of "ab a1"
  };
  const Case cases[] = {
      {byte_level(), {256, 258, '1'}},
      {old, {256, 258, '1'}},
      {plain, {256, 258, '1'}},
      {prefix, {258, 'b', 258, '1'}},
      {sequence(json::array({plain})), {256, 258, '1'}},
      {sequence(json::array({split("b"), plain})), {'a', 'b', 258, '1'}},
      {sequence(json::array({split("a"), split("\\p{N}"), plain})), {'a', 'b', ' ', 'a', '1'}},
      {sequence(json::array({{{"type", "Digits"}, {"individual_digits", true}}, prefix})),
       {258, 'b', 258, ' ', '1'}},
  };
  for (const Case& c : cases) {
    // Without "a b" but with "\u0120 a" first, so that the words show.
    json document = with(tokenizer_json(), "/pre_tokenizer", c.pre_tokenizer);
    document["model"]["merges"] = {"\u0120 a", "a b"};
    EXPECT_EQ(encode(*load_json(document), "ab a1"), c.ids) << c.pre_tokenizer;
  }
}

TEST(TokenizerJson, PostProcessorAndConfig) {
  const json bos = template_processing(json::array({special_piece("<s>"), text_piece("A")}));
  const json both = template_processing(
      json::array({special_piece("<s>"), text_piece("A"), special_piece("</s>")}));
  const json sequence = {{"type", "Sequence"}, {"processors", {byte_level(), bos}}};
  const json nested = {{"type", "Sequence"}, {"processors", {both, both}}};
  const json names = {{"bos_token", "<s>"}, {"eos_token", {{"content", "</s>"}}}};
  const json empty_names = {{"bos_token", ""}, {"eos_token", ""}};
  json asks_bos = names;
  asks_bos["add_bos_token"] = true;
  json no_bos = names;
  no_bos["add_bos_token"] = false;
  json asks_eos = names;
  asks_eos["add_eos_token"] = true;
  struct Case {
    json post_processor;
    json config;
    Ids ids;  // of "a"
  };
  const Case cases[] = {
      {nullptr, nullptr, {'a'}},
      {byte_level(), nullptr, {'a'}},
      {bos, nullptr, {259, 'a'}},
      {both, nullptr, {259, 'a', 260}},
      {sequence, nullptr, {259, 'a'}},
      {nested, nullptr, {259, 259, 'a', 260, 260}},
      {bos, names, {259, 'a'}},
      {nullptr, names, {'a'}},
      {nullptr, asks_bos, {259, 'a'}},
      {both, asks_bos, {259, 'a'}},
      {bos, no_bos, {'a'}},
      {bos, asks_eos, {'a', 260}},
      {bos, empty_names, {259, 'a'}},
      {bos, {{"bos_token", ""}, {"eos_token", "</s>"}, {"add_eos_token", true}}, {'a', 260}},
      {nullptr, {{"eos_token", "</s>"}, {"add_eos_token", true}}, {'a', 260}},
  };
  for (const Case& c : cases) {
    const auto tokenizer =
        load_json(with(tokenizer_json(), "/post_processor", c.post_processor), c.config);
    EXPECT_EQ(tokenizer->encode("a", {}), c.ids) << c.post_processor << c.config;
    EXPECT_EQ(encode(*tokenizer, "a"), (Ids{'a'}));
    if (c.config.contains("bos_token") && c.config["bos_token"] == "<s>") {
      EXPECT_EQ(tokenizer->bos_id(), 259);
      EXPECT_EQ(tokenizer->eos_id(), 260);
    }
  }
}

TEST(TokenizerJson, AddedTokens) {
  json document = tokenizer_json();
  document["added_tokens"].push_back(added(300, "dragon", false));
  document["added_tokens"].push_back(added(256, "ab", false));
  document["added_tokens"].push_back(added(301, "na\u00efve x", false));
  document["added_tokens"].push_back(added(302, "", false));
  const auto tokenizer = load_json(document, {{"additional_special_tokens", {"dragon", "nowhere"}},
                                              {"extra_special_tokens", {{"image_token", "x"}}},
                                              {"pad_token", "abc"}});
  // The control token "abc" hides the added token "ab" even where it is text.
  EXPECT_EQ(encode(*tokenizer, "dragonabcab"), (Ids{'d', 'r', 'a', 'g', 'o', 'n', 257, 256}));
  EXPECT_EQ(encode(*tokenizer, "dragonabc", true), (Ids{300, 257}));
  EXPECT_EQ(encode(*tokenizer, "na\u00efve x"), (Ids{301}));
  EXPECT_EQ(decode(*tokenizer, {300, 301, 257}), "na\u00efve x");
  EXPECT_EQ(tokenizer->token_bytes(257, true), "abc");
  EXPECT_EQ(tokenizer->token_bytes('x'), "");
}

// A token that says nothing of them takes no white space along.
TEST(TokenizerJson, AddedTokensHaveDefaults) {
  json document = tokenizer_json();
  for (const char* key : {"lstrip", "rstrip", "normalized", "single_word"}) {
    document = without(std::move(document), "/added_tokens/0", key);
  }
  EXPECT_EQ(encode(*load_json(document), "b <s> b", true), (Ids{'b', ' ', 259, ' ', 'b'}));
}

TEST(TokenizerJson, UnknownTokenAndHoles) {
  json document = without(tokenizer_json(), "/model/vocab", "z");
  EXPECT_TRUE(throws_error([&] { encode(*load_json(document), "az"); },
                           "the byte 0x7a of the text has no token"));
  document["model"]["vocab"]["<unk>"] = 300;
  document["model"]["unk_token"] = "<unk>";
  EXPECT_EQ(encode(*load_json(document), "azz"), (Ids{'a', 300, 300}));
  document["model"]["fuse_unk"] = true;
  EXPECT_EQ(encode(*load_json(document), "azz"), (Ids{'a', 300}));
}

TEST(TokenizerJson, LargeAndSparseIdsTakeNoMemory) {
  json document = tokenizer_json();
  document["model"]["vocab"]["z"] = 2'000'000'000;
  document["added_tokens"].push_back(added(INT32_MAX, "<x>", true));
  const auto tokenizer = load_json(document);
  EXPECT_EQ(tokenizer->vocab_size(), int64_t{INT32_MAX} + 1);
  EXPECT_EQ(encode(*tokenizer, "z<x>", true), (Ids{2'000'000'000, INT32_MAX}));
  EXPECT_EQ(tokenizer->token_bytes(2'000'000'000), "z");
  EXPECT_EQ(tokenizer->token_bytes(1'000'000'000, true), "");
}

TEST(TokenizerJson, Refused) {
  const json good = tokenizer_json();
  const auto pre = [&](const json& value) { return with(good, "/pre_tokenizer", value); };
  const auto sequence = [](const json& parts) {
    return json{{"type", "Sequence"}, {"pretokenizers", parts}};
  };
  const auto split = [](const json& pattern, std::string_view behavior) {
    return json{{"type", "Split"}, {"pattern", pattern}, {"behavior", behavior}, {"invert", false}};
  };
  const auto post = [&](const json& value) { return with(good, "/post_processor", value); };
  const auto with_added = [&](const json& value) {
    json document = good;
    document["added_tokens"].push_back(value);
    return document;
  };
  json no_single_template = template_processing(json::array({text_piece("A")}));
  no_single_template.erase("single");
  json unknown_id = template_processing(json::array({special_piece("<s>"), text_piece("A")}));
  unknown_id["special_tokens"]["<s>"]["ids"] = {999};
  struct Case {
    json document;
    std::string_view message;
  };
  const Case cases[] = {
      {nullptr, "tokenizer.json is null; expected an object"},
      {json::array(), "is an array; expected an object"},
      {"x", R"(is "x"; expected an object)"},
      {json::object(), "tokenizer.json: model is missing; expected an object"},
      {with(good, "/version", "2.0"), R"(version is "2.0"; only "1.0" is supported)"},
      {with(good, "/version", 1), "version is 1; expected a string"},

      {with(good, "/model", 3), "model is 3; expected an object"},
      {with(good, "/model/type", "Unigram"), R"(model.type is "Unigram"; only "BPE" is supported)"},
      {with(good, "/model/type", "WordPiece"),
       R"(model.type is "WordPiece"; only "BPE" is supported)"},
      {with(good, "/model/type", "WordLevel"),
       R"(model.type is "WordLevel"; only "BPE" is supported)"},
      {with(good, "/model/type", 1), "model.type is 1; expected a string"},
      {with(good, "/model/byte_fallback", true),
       R"(model.byte_fallback is true; only false is supported with the pre-tokenizer "ByteLevel")"},
      {with(good, "/model/byte_fallback", 1), "model.byte_fallback is 1; expected true or false"},
      {with(good, "/model/dropout", 0.1), "model.dropout is 0.1; only null is supported"},
      {with(good, "/model/continuing_subword_prefix", "##"),
       R"(model.continuing_subword_prefix is "##"; only null is supported)"},
      {with(good, "/model/end_of_word_suffix", "</w>"),
       R"(model.end_of_word_suffix is "</w>"; only null is supported)"},
      {with(good, "/model/unk_token", 7), "model.unk_token is 7; expected a string"},
      {with(good, "/model/ignore_merges", "yes"), R"(model.ignore_merges is "yes")"},

      {without(good, "/model", "vocab"), "model.vocab is missing; expected an object"},
      {with(good, "/model/vocab", json::object()), "the vocabulary is empty"},
      {with(good, "/model/vocab", json::array()), "model.vocab is an array; expected an object"},
      {with(good, "/model/vocab/x", -1),
       "model.vocab.x is -1; expected an integer from 0 to 2147483647"},
      {with(good, "/model/vocab/x", 1.5), R"(model.vocab.x is 1.5)"},
      {with(good, "/model/vocab/x", "1"), R"(model.vocab.x is "1")"},
      {with(good, "/model/vocab/x", nullptr), R"(model.vocab.x is null)"},
      {with(good, "/model/vocab/x", 2147483648), R"(model.vocab.x is 2147483648)"},
      {with(good, "/model/vocab/x", 4'000'000'000), R"(model.vocab.x is 4000000000)"},
      {with(good, "/model/vocab/x", UINT64_MAX), R"(model.vocab.x is 18446744073709551615)"},
      {with(good, "/model/vocab/x", 97), "have the same id 97"},
      {with(good, "/model/vocab/\n\u00e9", -1), R"(model.vocab["\n\u00e9"] is -1)"},
      {with(good, "/model/vocab/" + std::string(100'000, 'x'), -1),
       "...] is -1; expected an integer"},

      {without(good, "/model", "merges"), "model.merges is missing; expected an array"},
      {with(good, "/model/merges", "a b"), R"(model.merges is "a b"; expected an array)"},
      {with(good, "/model/merges/0", "ab"), R"(model.merges[0] is "ab"; expected two tokens)"},
      {with(good, "/model/merges/1", "a b c"), R"(model.merges[1] is "a b c")"},
      {with(good, "/model/merges/1", ""), R"(model.merges[1] is "")"},
      {with(good, "/model/merges/1", json::array({"a"})),
       "model.merges[1] is an array; expected two tokens"},
      {with(good, "/model/merges/1", json::array({"a", "b", "c"})), "model.merges[1] is an array"},
      {with(good, "/model/merges/1", json::array({"a", 1})),
       "model.merges[1] holds 1; expected strings"},
      {with(good, "/model/merges/1", 5), "model.merges[1] is 5; expected two tokens"},
      {with(good, "/model/merges/1", "a \u65e5"),
       R"(merge 2 ("a" and "\u65e5") needs the token "\u65e5", which is not there)"},
      {with(good, "/model/merges/1", "c d"), R"(needs the token "cd")"},

      {with(good, "/normalizer", {{"type", "NFKC"}}),
       R"(normalizer.type is "NFKC"; only "NFC", "Replace", "Prepend" and a "Sequence" of them)"},
      {with(good, "/normalizer", "NFC"), R"(normalizer is "NFC"; expected an object)"},

      {pre(nullptr), R"(decoder.type is "ByteLevel"; only "Replace", "Metaspace")"},
      {pre(1), "pre_tokenizer is 1; expected an object"},
      {pre(json::object()), "pre_tokenizer.type is missing"},
      {pre({{"type", "Metaspace"}}), "pre_tokenizer.replacement is missing; expected a string"},
      {pre({{"type", "Whitespace"}}), R"(pre_tokenizer.type is "Whitespace"; only "ByteLevel")"},
      {pre({{"type", "ByteLevel"}}), "pre_tokenizer.add_prefix_space is missing"},
      {pre(sequence(json::array())), R"(decoder.type is "ByteLevel"; only "Replace")"},
      {pre(sequence(7)), "pre_tokenizer.pretokenizers is 7; expected an array"},
      {pre(sequence(json::array({split({{"Regex", "a"}}, "Isolated")}))),
       R"(decoder.type is "ByteLevel"; only)"},
      {pre(sequence(json::array({byte_level(), split({{"Regex", "a"}}, "Isolated")}))),
       R"(pretokenizers[1].type is "Split"; nothing is supported after "ByteLevel")"},
      {pre(sequence(json::array({split({{"Regex", "a"}}, "Kept"), byte_level()}))),
       R"(pre_tokenizer.pretokenizers[0].behavior is "Kept"; only "Removed", "Isolated",)"},
      {pre(sequence(json::array({split({{"Text", "a"}}, "Isolated"), byte_level()}))),
       R"(pretokenizers[0].pattern is an object; expected {"String": ...})"},
      {pre(sequence(json::array({split({{"String", ""}}, "Isolated"), byte_level()}))),
       R"(pattern.String is ""; an empty pattern is not supported)"},
      {pre(sequence(json::array({split({{"Regex", "(a"}}, "Isolated"), byte_level()}))),
       R"(the regular expression "(a" does not compile)"},
      {pre(sequence(json::array({split({{"Regex", "\\w+"}}, "Isolated"), byte_level()}))),
       R"(the regular expression "\\w+" has "\\w", which is not supported)"},
      {pre(sequence(json::array({split({{"Regex", 5}}, "Isolated"), byte_level()}))), "Regex is 5"},

      {with(good, "/decoder", nullptr), "decoder is null; without a decoder there are spaces"},
      {with(good, "/decoder/type", "Metaspace"), R"(decoder.type is "Metaspace")"},
      {with(good, "/decoder", {{"type", "Sequence"}, {"decoders", {{{"type", "Fuse"}}}}}),
       R"(decoder.decoders[0].type is "Fuse")"},

      {post({{"type", "RobertaProcessing"}}), R"(post_processor.type is "RobertaProcessing")"},
      {post({{"type", 1}}), "post_processor.type is 1; expected a string"},
      {post(no_single_template), "post_processor.single is missing"},
      {post(template_processing(json::array({special_piece("<s>")}))), "has no place for the text"},
      {post(template_processing(json::array({text_piece("B")}))),
       R"(Sequence.id is "B"; expected the text)"},
      {post(template_processing(json::array({text_piece("A"), text_piece("A")}))),
       "expected the text \"A\" once"},
      {post(template_processing(json::array({special_piece("<x>"), text_piece("A")}))),
       R"(special_tokens["<x>"] is missing)"},
      {post(template_processing(json::array({1}))), "single[0] is 1; expected an object"},
      {post(unknown_id), "the post-processor adds 999, which is no token's id"},

      {with(good, "/added_tokens", 1), "added_tokens is 1; expected an array"},
      {with_added(5), "added_tokens[2] is 5; expected an object"},
      {with_added({{"id", 300}}), "added_tokens[2].content is missing"},
      {with_added({{"content", "x"}}), "added_tokens[2].id is missing"},
      {with_added(added(-1, "<x>", false)), "added_tokens[2].id is -1; expected an integer"},
      {with_added(added(1LL << 31, "<x>", false)), "added_tokens[2].id is 2147483648"},
      {with_added(added(259, "<x>", false)),
       R"(the added token "<x>" has the id 259, which does not fit the vocabulary)"},
      {with_added(added(97, "<x>", false)), "has the id 97, which does not fit the vocabulary"},
      {with_added(added(300, "ab", false)), "has the id 300, which does not fit the vocabulary"},
      {with_added(added(300, "<s>", true)), R"(the added token "<s>" is there twice)"},
      {with_added(added(300, std::string(2000, 'x'), true)), "has 2000 bytes"},
      {with(good, "/added_tokens/0/single_word", true), "added_tokens[0].single_word is true"},
      {with(good, "/added_tokens/0/lstrip", 1), "added_tokens[0].lstrip is 1"},
      {with(good, "/added_tokens/0/special", "no"), R"(added_tokens[0].special is "no")"},
  };
  for (const Case& c : cases) {
    EXPECT_TRUE(throws_error([&] { load_json(c.document); }, c.message));
  }
}

TEST(TokenizerJson, NotJson) {
  struct Case {
    std::string text;
    std::string_view message;
  };
  const std::string good = tokenizer_json().dump();
  const Case cases[] = {
      {"", "tokenizer.json: invalid JSON at byte"},
      {"{", "invalid JSON at byte"},
      {good.substr(0, good.size() / 2), "invalid JSON at byte"},
      {good + "}", "invalid JSON at byte"},
      {"{\"version\": \"\xff\"}", "invalid JSON at byte"},
      {"{\"a\": 1, \"a\": 1}", R"(tokenizer.json: the key "a" is there twice)"},
      {good + '\0', "invalid JSON at byte"},
      {std::string(1'000'000, '['), "the JSON is nested more than 32 levels deep"},
      {"{\"a\":" + std::string(40, '[') + std::string(40, ']') + "}", "nested more than 32"},
      {"{\"model\": 1e999999}", "tokenizer.json: number out of range at byte"},
  };
  for (const Case& c : cases) {
    EXPECT_TRUE(throws_error([&] { load_files(Files{{"tokenizer.json", c.text}}); }, c.message));
  }
}

// Damages that leave JSON behind must be an Error or a tokenizer that works.
TEST(TokenizerJson, DamagedFiles) {
  json small = tokenizer_json();
  small["post_processor"] =
      template_processing(json::array({special_piece("<s>"), text_piece("A")}));
  const std::string good = small.dump();
  std::mt19937_64 random(4);
  constexpr std::string_view kBytes = "{}[]\",:0123456789-.eE\\ntfu\x80";
  for (int repeat = 0; repeat < 3000; ++repeat) {
    std::string damaged = good;
    for (auto count = 1 + random() % 3; count > 0; --count) {
      damaged[random() % damaged.size()] = kBytes[random() % kBytes.size()];
    }
    try {
      const auto tokenizer = load_files(Files{{"tokenizer.json", damaged}});
      decode(*tokenizer, tokenizer->encode("abc a<s> 12 \u00e9", {}));
    } catch (const Error&) {
    }
  }
}

TEST(TokenizerConfigFile, Refused) {
  struct Case {
    json config;
    std::string_view message;
  };
  const auto decoder = [](std::string_view key, const json& value) {
    return json{{"added_tokens_decoder", {{key, value}}}};
  };
  const json entry = {{"content", "<x>"}};
  const Case cases[] = {
      {json::array(), "tokenizer_config.json is an array; expected an object"},
      {{{"bos_token", 1}}, "tokenizer_config.json: bos_token is 1; expected a string"},
      {{{"bos_token", {{"text", "<s>"}}}}, "bos_token.content is missing"},
      {{{"bos_token", "<b>"}}, R"(bos_token "<b>" is not in the vocabulary)"},
      {{{"eos_token", {{"content", "<e>"}}}}, R"(eos_token "<e>" is not in the vocabulary)"},
      {{{"pad_token", false}}, "pad_token is false; expected a string"},
      {{{"add_bos_token", "yes"}}, R"(add_bos_token is "yes"; expected true or false)"},
      {{{"add_eos_token", 1}}, "add_eos_token is 1"},
      {{{"add_bos_token", true}}, "add_bos_token is true, but there is no bos_token"},
      {{{"legacy", "no"}}, R"(legacy is "no")"},
      {{{"tokenizer_class", 1}}, "tokenizer_class is 1; expected a string"},
      {{{"additional_special_tokens", "x"}}, R"(additional_special_tokens is "x")"},
      {{{"additional_special_tokens", {1}}}, "additional_special_tokens[0] is 1"},
      {{{"extra_special_tokens", {{"x", 1}}}}, "extra_special_tokens.x is 1"},
      {{{"added_tokens_decoder", 1}}, "added_tokens_decoder is 1; expected an object"},
      {decoder("x", entry), R"(added_tokens_decoder: "x" is not a token id)"},
      {decoder("-1", entry), R"("-1" is not a token id)"},
      {decoder("1x", entry), R"("1x" is not a token id)"},
      {decoder("", entry), R"("" is not a token id)"},
      {decoder("4000000000", entry), R"("4000000000" is not a token id)"},
      {decoder("7", 1), R"(added_tokens_decoder["7"] is 1; expected an object)"},
      {decoder("7", json::object()), R"(added_tokens_decoder["7"].content is missing)"},
  };
  for (const Case& c : cases) {
    EXPECT_TRUE(throws_error([&] { load_json(tokenizer_json(), c.config); }, c.message));
  }
  EXPECT_TRUE(throws_error(
      [] {
        load_files(
            Files{{"tokenizer.json", tokenizer_json().dump()}, {"tokenizer_config.json", "{"}});
      },
      "tokenizer_config.json: invalid JSON"));
}

TEST(VocabMerges, BosAsTheConfigSays) {
  const json opt = {{"tokenizer_class", "GPT2Tokenizer"},
                    {"add_bos_token", true},
                    {"bos_token", {{"content", "</s>"}}},
                    {"eos_token", "</s>"},
                    {"unk_token", "</s>"},
                    {"pad_token", "<pad>"}};
  json no_flag = opt;
  no_flag.erase("add_bos_token");
  json eos = opt;
  eos["add_eos_token"] = true;
  json gpt2_vocabulary = vocabulary();
  gpt2_vocabulary["<|endoftext|>"] = 259;
  json prefix_space = no_flag;
  prefix_space["add_prefix_space"] = true;
  struct Case {
    json vocab;
    json config;
    Ids ids;  // of "a"
    std::optional<int32_t> bos;
  };
  const Case cases[] = {
      {opt_vocabulary(), opt, {260, 'a'}, 260},
      {opt_vocabulary(), no_flag, {'a'}, 260},
      {opt_vocabulary(), eos, {260, 'a', 260}, 260},
      {opt_vocabulary(), prefix_space, {258}, 260},
      {opt_vocabulary(), nullptr, {260, 'a'}, 260},
      {opt_vocabulary(), {{"add_bos_token", false}}, {'a'}, 260},
      {gpt2_vocabulary, nullptr, {'a'}, 259},
      {gpt2_vocabulary, {{"add_bos_token", true}}, {259, 'a'}, 259},
      {vocabulary(), nullptr, {'a'}, std::nullopt},
  };
  for (const Case& c : cases) {
    const auto tokenizer = load_files(opt_files(c.vocab, kMerges, c.config));
    EXPECT_EQ(tokenizer->encode("a", {}), c.ids) << c.config;
    EXPECT_EQ(tokenizer->bos_id(), c.bos);
    EXPECT_EQ(tokenizer->eos_id(), c.bos);
  }
}

TEST(VocabMerges, SpecialTokensInTheText) {
  const json config = {{"bos_token", "</s>"}, {"eos_token", "</s>"}, {"pad_token", "<pad>"}};
  const auto tokenizer = load_files(opt_files(opt_vocabulary(), kMerges, config));
  EXPECT_EQ(encode(*tokenizer, "a</s>", true), (Ids{'a', 260}));
  EXPECT_EQ(encode(*tokenizer, "a</s>"), (Ids{'a', '<', '/', 's', '>'}));
  EXPECT_EQ(encode(*tokenizer, "<pad>a", true), (Ids{261, 'a'}));
  EXPECT_EQ(encode(*tokenizer, "<s>", true), (Ids{'<', 's', '>'}));  // named by nothing
  EXPECT_EQ(decode(*tokenizer, {260, 257, 261, 259}), "abc<s>");
}

TEST(VocabMerges, AddedTokenFiles) {
  Files files = opt_files(opt_vocabulary(), kMerges);
  files.emplace_back("added_tokens.json", R"({"dragon": 300})");
  EXPECT_EQ(encode(*load_files(files), "dragonab"), (Ids{300, 256}));
  files.emplace_back("tokenizer_config.json",
                     R"({"added_tokens_decoder": {"301": {"content": "prince"}}})");
  EXPECT_EQ(encode(*load_files(files), "princeab"), (Ids{301, 256}));
  files = opt_files(opt_vocabulary(), kMerges);
  files.emplace_back("added_tokens.json", R"({"dragon": "x"})");
  EXPECT_TRUE(throws_error([&] { load_files(files); }, R"(added_tokens.json: dragon is "x")"));
}

// They are looked for in what tokens that are not normalized have left of the text.
TEST(VocabMerges, TokensOfAddedTokensFilesAreNormalized) {
  Files files = opt_files(opt_vocabulary(), kMerges, {{"pad_token", "<pad>"}});
  files.emplace_back("added_tokens.json", R"({"a<pad": 300})");
  EXPECT_EQ(encode(*load_files(files), "a<pad>a<pad", true), (Ids{'a', 261, 300}));
}

TEST(VocabMerges, Refused) {
  const std::string vocab = opt_vocabulary().dump();
  struct Case {
    Files files;
    std::string_view message;
  };
  const Case cases[] = {
      {{{"vocab.json", vocab}}, "merges.txt"},
      {{{"vocab.json", ""}, {"merges.txt", ""}}, "vocab.json: invalid JSON"},
      {{{"vocab.json", "[]"}, {"merges.txt", ""}}, "vocab.json is an array; expected an object"},
      {{{"vocab.json", "{}"}, {"merges.txt", ""}}, "vocab.json: the vocabulary is empty"},
      {{{"vocab.json", R"({"a": 1, "b": 1})"}, {"merges.txt", ""}}, "have the same id 1"},
      {{{"vocab.json", R"({"a": -1})"}, {"merges.txt", ""}},
       "vocab.json: a is -1; expected an integer from 0 to 2147483647"},
      {{{"vocab.json", R"({"a": 2147483648})"}, {"merges.txt", ""}}, "is 2147483648; expected"},
      {{{"vocab.json", R"({"a": "1"})"}, {"merges.txt", ""}}, R"(vocab.json: a is "1")"},
      {{{"vocab.json", R"({"\u0120a": "1"})"}, {"merges.txt", ""}},
       R"(vocab.json: ["\u0120a"] is "1")"},
      {{{"vocab.json", R"({"a": 1, "a": 2})"}, {"merges.txt", ""}},
       R"(vocab.json: the key "a" is there twice)"},
      {opt_files(opt_vocabulary(), "#version: 0.2\na b\nab\n"),
       R"(merges.txt:3: "ab" is not a pair of tokens)"},
      {opt_files(opt_vocabulary(), "a b c\n"), R"(merges.txt:1: "a b c" is not a pair of tokens)"},
      {opt_files(opt_vocabulary(), "a b\n\nab c\n"), R"(merges.txt:2: "" is not a pair of tokens)"},
      {opt_files(opt_vocabulary(), "a  b\n"), "is not a pair of tokens"},
      {opt_files(opt_vocabulary(), "a\tb\n"), "is not a pair of tokens"},
      {opt_files(opt_vocabulary(), "a b\nx y\n"), R"(needs the token "xy", which is not there)"},
      {opt_files(opt_vocabulary(), "a b\n\xff c\n"), "which is not there"},
      {opt_files(opt_vocabulary(), std::string(100'000, 'x')), "is not a pair of tokens"},
      {opt_files(opt_vocabulary(), kMerges, {{"tokenizer_class", "Qwen2Tokenizer"}}),
       R"(tokenizer_class is "Qwen2Tokenizer"; with a vocab.json only "GPT2Tokenizer")"},
  };
  for (const Case& c : cases) {
    EXPECT_TRUE(throws_error([&] { load_files(c.files); }, c.message));
  }
  EXPECT_EQ(encode(*load_files(opt_files(opt_vocabulary(), "a b\r\nab c\r\n")), "abc"), (Ids{257}));
  EXPECT_EQ(encode(*load_files(opt_files(opt_vocabulary(), "a b\nab c")), "abc"), (Ids{257}));
  EXPECT_EQ(encode(*load_files(opt_files(opt_vocabulary(), "")), "ab"), (Ids{'a', 'b'}));
}

}  // namespace
}  // namespace sparsellm
