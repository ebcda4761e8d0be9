#include "tokenizer/tokenizer_json.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "tokenizer/bpe_tokenizer.h"
#include "tokenizer/tokenizer_json_parts.h"

namespace sparsellm {
namespace {

// The oldest files have no type.
void check_model_type(const JsonValue& type) {
  if (type.present() && type.string() != "BPE") {
    type.refuse("only \"BPE\" is supported");
  }
}

// Where a text begins could not be told any more.
void check_first_piece(const JsonValue& normalizer, const BpeTokenizerParts& parts) {
  const auto prepends_first = [](const PretokenizerStep& step) {
    const auto* metaspace = std::get_if<MetaspaceStep>(&step);
    return metaspace != nullptr && metaspace->prepend == MetaspaceStep::Prepend::first;
  };
  const auto removes = [](const NormalizerStep& step) {
    const auto* replace = std::get_if<ReplaceStep>(&step);
    return replace != nullptr && replace->content.empty();
  };
  const auto& steps = parts.pretokenizer.steps;
  require(std::none_of(steps.begin(), steps.end(), prepends_first) ||
              std::none_of(parts.normalizer.begin(), parts.normalizer.end(), removes),
          "{} removes text, which is not supported with the prepend_scheme \"first\"",
          normalizer.name());
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
  for (const JsonValue& part : flatten_sequence(node, "processors")) {
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

  BpeTokenizerParts parts;
  parts.source = file.string();
  check_model_type(root["model"]["type"]);
  parts.normalizer = read_normalizer(root["normalizer"]);
  JsonPretokenizer pretokenizer = read_pretokenizer(root["pre_tokenizer"]);
  const bool is_byte_level = pretokenizer.has_byte_level;
  parts.pretokenizer = std::move(pretokenizer.options);
  check_first_piece(root["normalizer"], parts);
  parts.model = read_bpe_model(
      root["model"], is_byte_level ? BpeModel::Symbols::bytes : BpeModel::Symbols::characters);
  parts.decoder = read_decoder(root["decoder"], is_byte_level);

  parts.special_tokens =
      resolve_special_tokens(read_added_tokens(root["added_tokens"]), config,
                             [&](const std::string& content) { return parts.model.find(content); });
  parts.frame = read_post_processor(root["post_processor"]);
  if (config.add_bos_token || config.add_eos_token) {
    const auto& [added_tokens, bos_id, eos_id] = parts.special_tokens;
    parts.frame = make_frame(config, false, bos_id, eos_id);
  }
  return make_bpe_tokenizer(parts);
}

}  // namespace sparsellm
