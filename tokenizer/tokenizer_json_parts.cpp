#include "tokenizer/tokenizer_json_parts.h"

#include <spdlog/fmt/fmt.h>

#include <iterator>

namespace sparsellm {

std::vector<JsonValue> flatten_sequence(const JsonValue& node, std::string_view key) {
  if (node["type"].string() != "Sequence") {
    return {node};
  }
  const JsonValue list = node[key];
  std::vector<JsonValue> parts;
  for (int64_t i = 0; i < list.size(); ++i) {
    std::vector<JsonValue> inner = flatten_sequence(list.element(i), key);
    parts.insert(parts.end(), std::make_move_iterator(inner.begin()),
                 std::make_move_iterator(inner.end()));
  }
  return parts;
}

std::string read_step_text(const JsonValue& node) {
  const std::string& text = node.string();
  if (text.size() > kMaxStepBytes) {
    node.refuse(fmt::format("at most {} bytes are supported", kMaxStepBytes));
  }
  return text;
}

std::string read_string_pattern(const JsonValue& node) {
  const JsonValue text = node["String"];
  if (!text.present()) {
    node.refuse("expected {\"String\": ...}");
  }
  std::string pattern = read_step_text(text);
  if (pattern.empty()) {
    text.refuse("an empty pattern is not supported");
  }
  return pattern;
}

}  // namespace sparsellm
