#include <spdlog/fmt/fmt.h>

#include <utility>

#include "tokenizer/tokenizer_json_parts.h"

namespace sparsellm {

std::vector<NormalizerStep> read_normalizer(const JsonValue& node) {
  std::vector<NormalizerStep> steps;
  if (!node.present()) {
    return steps;
  }
  for (const JsonValue& part : flatten_sequence(node, "normalizers")) {
    if (steps.size() == Normalizer::kMaxSteps) {
      node.refuse(fmt::format("at most {} steps are supported", Normalizer::kMaxSteps));
    }
    const std::string& type = part["type"].string();
    if (type == "NFC") {
      steps.emplace_back(NfcStep());
    } else if (type == "Replace") {
      std::string pattern = read_string_pattern(part["pattern"]);
      steps.emplace_back(ReplaceStep{std::move(pattern), read_step_text(part["content"])});
    } else if (type == "Prepend") {
      steps.emplace_back(PrependStep{read_step_text(part["prepend"])});
    } else {
      part["type"].refuse(
          "only \"NFC\", \"Replace\", \"Prepend\" and a \"Sequence\" of them are supported");
    }
  }
  return steps;
}

}  // namespace sparsellm
