#include <cstdint>
#include <utility>

#include "tokenizer/tokenizer_json_parts.h"

namespace sparsellm {
namespace {

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

}  // namespace

BpeModel read_bpe_model(const JsonValue& node, BpeModel::Symbols symbols) {
  BpeModel model;
  model.symbols = symbols;
  model.byte_fallback = node["byte_fallback"].boolean(false);
  if (model.byte_fallback && symbols == BpeModel::Symbols::bytes) {
    node["byte_fallback"].refuse("only false is supported with the pre-tokenizer \"ByteLevel\"");
  }
  if (const JsonValue dropout = node["dropout"]; dropout.present()) {
    dropout.refuse("only null is supported");
  }
  require_off(node["continuing_subword_prefix"]);
  require_off(node["end_of_word_suffix"]);

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

}  // namespace sparsellm
