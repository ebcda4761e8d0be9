#include "tokenizer/tokenizer_json.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/json_file.h"

namespace sparsellm {
namespace {

using nlohmann::json;

constexpr std::string_view kUseSentencePiece =
    "only byte-level BPE is supported; for a SentencePiece model put its tokenizer.model into the "
    "directory";

// The parts of a "Sequence" under `key`, or `node` itself.
std::vector<JsonNode> flatten(const JsonNode& node, std::string_view key) {
  if (node["type"].string() != "Sequence") {
    return {node};
  }
  const JsonNode list = node[key];
  std::vector<JsonNode> parts;
  for (const json& element : list.array()) {
    parts.emplace_back(&element, fmt::format("{}[{}]", list.name(), parts.size()));
  }
  return parts;
}

// Switches of a model that must be off, or not there.
void require_off(const JsonNode& node) {
  const bool is_off = !node.present() || (node.is_string() && node.string().empty());
  if (!is_off) {
    node.refuse("only null is supported");
  }
}

std::pair<std::string, std::string> read_merge(const json& merge, const JsonNode& list,
                                               size_t index) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  }
  const JsonNode node(&merge, fmt::format("{}[{}]", list.name(), index));
  constexpr std::string_view kExpected = "expected two tokens";
  if (!node.is_string()) {
    node.refuse(kExpected);
  }
  const std::string& text = node.string();
  const size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
    node.refuse(kExpected);
  }
  return {text.substr(0, space), text.substr(space + 1)};
}

BpeModel read_model(const JsonNode& node) {
  // The oldest files have no type.
  if (const JsonNode type = node["type"]; type.present() && type.string() != "BPE") {
    type.refuse(kUseSentencePiece);
  }
  if (node["byte_fallback"].boolean(false)) {
    node["byte_fallback"].refuse(kUseSentencePiece);
  }
  if (const JsonNode dropout = node["dropout"]; dropout.present()) {
    dropout.refuse("only null is supported");
  }
  require_off(node["continuing_subword_prefix"]);
  require_off(node["end_of_word_suffix"]);

  BpeModel model;
  model.fuse_unknown = node["fuse_unk"].boolean(false);
  model.ignore_merges = node["ignore_merges"].boolean(false);
  if (const JsonNode unknown = node["unk_token"]; unknown.present()) {
    model.unknown_token = unknown.string();
  }
  model.vocabulary = node["vocab"].token_ids();
  const JsonNode merges = node["merges"];
  for (const json& merge : merges.array()) {
    model.merges.push_back(read_merge(merge, merges, model.merges.size()));
  }
  return model;
}

std::string read_split_pattern(const JsonNode& split) {
  if (const JsonNode behavior = split["behavior"]; behavior.string() != "Isolated") {
    behavior.refuse("only \"Isolated\" is supported");
  }
  // "invert" exchanges the matches with what is between them, and all of them are kept.
  const JsonNode regex = split["pattern"]["Regex"];
  if (!regex.present()) {
    split["pattern"].refuse("only {\"Regex\": ...} is supported");
  }
  return regex.string();
}

PretokenizerOptions read_pretokenizer(const JsonNode& node) {
  if (!node.present()) {
    node.refuse(kUseSentencePiece);
  }
  PretokenizerOptions options;
  bool has_byte_level = false;
  for (const JsonNode& part : flatten(node, "pretokenizers")) {
    const std::string& type = part["type"].string();
    if (type == "Metaspace") {
      part["type"].refuse(kUseSentencePiece);
    }
    if (has_byte_level) {
      part["type"].refuse("nothing is supported behind \"ByteLevel\"");
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

void check_decoder(const JsonNode& node) {
  if (!node.present()) {
    node.refuse(kUseSentencePiece);
  }
  for (const JsonNode& part : flatten(node, "decoders")) {
    if (part["type"].string() != "ByteLevel") {
      part["type"].refuse(kUseSentencePiece);
    }
  }
}

std::vector<AddedToken> read_added_tokens(const JsonNode& node) {
  std::vector<AddedToken> tokens;
  if (!node.present()) {
    return tokens;
  }
  for (const json& element : node.array()) {
    const JsonNode entry(&element, fmt::format("{}[{}]", node.name(), tokens.size()));
    tokens.push_back(read_added_token(entry));
    tokens.back().id = entry["id"].token_id();
  }
  return tokens;
}

// The ids of one special token of a template.
std::vector<int32_t> template_token_ids(const JsonNode& token) {
  const JsonNode ids = token["ids"];
  std::vector<int32_t> result;
  for (const json& id : ids.array()) {
    result.push_back(JsonNode(&id, ids.name() + "[]").token_id());
  }
  return result;
}

Frame read_template(const JsonNode& node) {
  Frame frame;
  bool behind_text = false;
  const JsonNode pieces = node["single"];
  for (const json& element : pieces.array()) {
    const JsonNode piece(&element, pieces.name() + "[]");
    if (const JsonNode special = piece["SpecialToken"]; special.present()) {
      const std::string& name = special["id"].string();
      const std::vector<int32_t> ids = template_token_ids(node["special_tokens"][name]);
      auto& side = behind_text ? frame.suffix : frame.prefix;
      side.insert(side.end(), ids.begin(), ids.end());
      continue;
    }
    const JsonNode sequence = piece["Sequence"]["id"];
    if (sequence.string() != "A" || behind_text) {
      sequence.refuse("expected the text \"A\" once");
    }
    behind_text = true;
  }
  require(behind_text, "{} has no place for the text", pieces.name());
  return frame;
}

Frame read_post_processor(const JsonNode& node) {
  Frame frame;
  if (!node.present()) {
    return frame;
  }
  for (const JsonNode& part : flatten(node, "processors")) {
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

std::unique_ptr<Tokenizer> load_tokenizer_json(const std::filesystem::path& path,
                                               const TokenizerConfig& config) {
  const json document = read_tokenizer_json(path);
  const JsonNode root(&document, path.string() + ":");
  if (const JsonNode version = root["version"]; version.present() && version.string() != "1.0") {
    version.refuse("only \"1.0\" is supported");
  }

  ByteLevelParts parts;
  parts.source = path.string();
  parts.model = read_model(root["model"]);
  if (const JsonNode normalizer = root["normalizer"]; normalizer.present()) {
    const JsonNode type = normalizer["type"];
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
