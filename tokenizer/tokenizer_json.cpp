#include "tokenizer/tokenizer_json.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "tokenizer/byte_level.h"

namespace sparsellm {
namespace {

constexpr std::string_view kUseSentencePiece =
    "only byte-level BPE is supported; for a SentencePiece model put its tokenizer.model into the "
    "directory";

// The parts of a "Sequence" under `key`, or `node` itself.
std::vector<JsonValue> flatten(const JsonValue& node, std::string_view key) {
  if (node["type"].string() != "Sequence") {
    return {node};
  }
  const JsonValue list = node[key];
  std::vector<JsonValue> parts;
  for (int64_t i = 0; i < list.size(); ++i) {
    parts.push_back(list.element(i));
  }
  return parts;
}

// Switches of a model that must be off, or not there.
void require_off(const JsonValue& node) {
  const bool is_off = !node.present() || (node.is_string() && node.string().empty());
  if (!is_off) {
    node.refuse("only null is supported");
  }
}

// "a b", or ["a", "b"] in newer files.
std::pair<std::string, std::string> read_merge(const JsonValue& merge) {
  constexpr std::string_view kExpected = "expected two tokens";
  if (merge.is_array() && merge.size() == 2) {
    std::vector<std::string> tokens = merge.strings();
    return {std::move(tokens[0]), std::move(tokens[1])};
  }
  if (!merge.is_string()) {
    merge.refuse(kExpected);
  }
  const std::string& text = merge.string();
  const size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
    merge.refuse(kExpected);
  }
  return {text.substr(0, space), text.substr(space + 1)};
}

BpeModel read_model(const JsonValue& node) {
  // The oldest files have no type.
  if (const JsonValue type = node["type"]; type.present() && type.string() != "BPE") {
    type.refuse(kUseSentencePiece);
  }
  if (node["byte_fallback"].boolean(false)) {
    node["byte_fallback"].refuse(kUseSentencePiece);
  }
  if (const JsonValue dropout = node["dropout"]; dropout.present()) {
    dropout.refuse("only null is supported");
  }
  require_off(node["continuing_subword_prefix"]);
  require_off(node["end_of_word_suffix"]);

  BpeModel model;
  model.fuse_unknown = node["fuse_unk"].boolean(false);
  model.ignore_merges = node["ignore_merges"].boolean(false);
  if (const JsonValue unknown = node["unk_token"]; unknown.present()) {
    model.unknown_token = unknown.string();
  }
  model.vocabulary = node["vocab"].integer_map(0, INT32_MAX);
  const JsonValue merges = node["merges"];
  for (int64_t i = 0; i < merges.size(); ++i) {
    model.merges.push_back(read_merge(merges.element(i)));
  }
  return model;
}

std::string read_split_pattern(const JsonValue& split) {
  if (const JsonValue behavior = split["behavior"]; behavior.string() != "Isolated") {
    behavior.refuse("only \"Isolated\" is supported");
  }
  // "invert" exchanges the matches with what is between them, and all of them are kept.
  const JsonValue regex = split["pattern"]["Regex"];
  if (!regex.present()) {
    split["pattern"].refuse("only {\"Regex\": ...} is supported");
  }
  return regex.string();
}

PretokenizerOptions read_pretokenizer(const JsonValue& node) {
  if (!node.present()) {
    node.refuse(kUseSentencePiece);
  }
  PretokenizerOptions options;
  bool has_byte_level = false;
  for (const JsonValue& part : flatten(node, "pretokenizers")) {
    const std::string& type = part["type"].string();
    if (type == "Metaspace") {
      part["type"].refuse(kUseSentencePiece);
    }
    if (has_byte_level) {
      part["type"].refuse("nothing is supported after \"ByteLevel\"");
    }
    if (type == "Split") {
      options.split_patterns.push_back(read_split_pattern(part));
    } else if (type == "Digits") {
      options.split_patterns.emplace_back(part["individual_digits"].boolean(false) ? "\\p{N}"
                                                                                   : "\\p{N}+");
    } else if (type == "ByteLevel") {
      options.add_prefix_space = part["add_prefix_space"].boolean();
      options.use_gpt2_pattern = part["use_regex"].boolean(true);
      has_byte_level = true;
    } else {
      part["type"].refuse(
          "only \"ByteLevel\", \"Split\", \"Digits\" and a \"Sequence\" of them "
          "are supported");
    }
  }
  require(has_byte_level, "{} has no \"ByteLevel\"; {}", node.name(), kUseSentencePiece);
  return options;
}

void check_decoder(const JsonValue& node) {
  if (!node.present()) {
    node.refuse(kUseSentencePiece);
  }
  for (const JsonValue& part : flatten(node, "decoders")) {
    if (part["type"].string() != "ByteLevel") {
      part["type"].refuse(kUseSentencePiece);
    }
  }
}

std::vector<AddedToken> read_added_tokens(const JsonValue& node) {
  std::vector<AddedToken> tokens;
  if (!node.present()) {
    return tokens;
  }
  for (int64_t i = 0; i < node.size(); ++i) {
    const JsonValue entry = node.element(i);
    tokens.push_back(read_added_token(entry));
    tokens.back().id = static_cast<int32_t>(entry["id"].integer(0, INT32_MAX));
  }
  return tokens;
}

Frame read_template(const JsonValue& node) {
  Frame frame;
  bool behind_text = false;
  const JsonValue pieces = node["single"];
  for (int64_t i = 0; i < pieces.size(); ++i) {
    const JsonValue piece = pieces.element(i);
    if (const JsonValue special = piece["SpecialToken"]; special.present()) {
      const std::string& name = special["id"].string();
      const std::vector<int64_t> ids = node["special_tokens"][name]["ids"].integers(0, INT32_MAX);
      auto& side = behind_text ? frame.suffix : frame.prefix;
      side.insert(side.end(), ids.begin(), ids.end());
      continue;
    }
    const JsonValue sequence = piece["Sequence"]["id"];
    if (sequence.string() != "A" || behind_text) {
      sequence.refuse("expected the text \"A\" once");
    }
    behind_text = true;
  }
  require(behind_text, "{} has no place for the text", pieces.name());
  return frame;
}

Frame read_post_processor(const JsonValue& node) {
  Frame frame;
  if (!node.present()) {
    return frame;
  }
  for (const JsonValue& part : flatten(node, "processors")) {
    const std::string& type = part["type"].string();
    if (type == "TemplateProcessing") {  // around what the parts before it made
      Frame outer = read_template(part);
      std::copy(frame.prefix.begin(), frame.prefix.end(), std::back_inserter(outer.prefix));
      std::copy(outer.suffix.begin(), outer.suffix.end(), std::back_inserter(frame.suffix));
      frame.prefix = std::move(outer.prefix);
    } else if (type != "ByteLevel") {  // which only changes offsets
      part["type"].refuse(
          "only \"TemplateProcessing\", \"ByteLevel\" and a \"Sequence\" of them "
          "are supported");
    }
  }
  return frame;
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer_json(const InputFile& file,
                                               const TokenizerConfig& config) {
  const JsonDocument document =
      read_json_file(file, kMaxTokenizerFileBytes, kMaxTokenizerJsonDepth);
  const JsonValue root(document, file.string());
  if (const JsonValue version = root["version"]; version.present() && version.string() != "1.0") {
    version.refuse("only \"1.0\" is supported");
  }

  ByteLevelParts parts;
  parts.source = file.string();
  parts.model = read_model(root["model"]);
  if (const JsonValue normalizer = root["normalizer"]; normalizer.present()) {
    const JsonValue type = normalizer["type"];
    (type.present() ? type : normalizer)
        .refuse("only tokenizers without a normalizer are supported (null)");
  }
  parts.pretokenizer = read_pretokenizer(root["pre_tokenizer"]);
  check_decoder(root["decoder"]);

  parts.special_tokens =
      resolve_special_tokens(read_added_tokens(root["added_tokens"]), config,
                             [&](const std::string& content) { return parts.model.find(content); });
  parts.frame = read_post_processor(root["post_processor"]);
  if (config.add_bos_token || config.add_eos_token) {
    const auto& [added_tokens, bos_id, eos_id] = parts.special_tokens;
    parts.frame = make_frame(config, false, bos_id, eos_id);
  }
  return make_byte_level_tokenizer(parts);
}

}  // namespace sparsellm
