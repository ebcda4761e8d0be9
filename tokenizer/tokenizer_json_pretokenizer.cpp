#include <spdlog/fmt/fmt.h>

#include <array>
#include <utility>

#include "kernels/base/error.h"
#include "tokenizer/tokenizer_json_parts.h"
#include "tokenizer/utf8.h"

namespace sparsellm {
namespace {

SplitBehavior read_behavior(const JsonValue& node) {
  constexpr std::array<std::pair<std::string_view, SplitBehavior>, 5> kBehaviors = {{
      {"Removed", SplitBehavior::removed},
      {"Isolated", SplitBehavior::isolated},
      {"MergedWithPrevious", SplitBehavior::merged_with_previous},
      {"MergedWithNext", SplitBehavior::merged_with_next},
      {"Contiguous", SplitBehavior::contiguous},
  }};
  for (const auto& [name, behavior] : kBehaviors) {
    if (node.string() == name) {
      return behavior;
    }
  }
  node.refuse(
      "only \"Removed\", \"Isolated\", \"MergedWithPrevious\", \"MergedWithNext\" and "
      "\"Contiguous\" are supported");
}

SplitStep read_split(const JsonValue& node) {
  SplitStep step{.pattern = {},
                 .behavior = read_behavior(node["behavior"]),
                 .invert = node["invert"].boolean(false)};
  const JsonValue pattern = node["pattern"];
  if (const JsonValue regex = pattern["Regex"]; regex.present()) {
    step.pattern = regex.string();
  } else {
    step.kind = SplitStep::Pattern::text;
    step.pattern = read_string_pattern(pattern);
  }
  return step;
}

SplitStep read_digits(const JsonValue& node) {
  return {.pattern = node["individual_digits"].boolean(false) ? "\\p{N}" : "\\p{N}+"};
}

}  // namespace

MetaspaceStep read_metaspace(const JsonValue& node) {
  using Prepend = MetaspaceStep::Prepend;
  MetaspaceStep step;
  const JsonValue replacement = node["replacement"];
  step.replacement = replacement.string();
  if (std::string_view rest = step.replacement;
      rest.empty() || (take_character(rest), !rest.empty())) {
    replacement.refuse("expected one character");
  }
  step.split = node["split"].boolean(true);

  const JsonValue adds = node["add_prefix_space"];  // of older files
  const bool is_never = !adds.boolean(true);
  if (is_never) {
    step.prepend = Prepend::never;
  }
  const JsonValue scheme = node["prepend_scheme"];
  if (!scheme.present()) {
    return step;
  }
  const std::string& name = scheme.string();
  if (name == "never") {
    step.prepend = Prepend::never;
  } else if (name != "always" && name != "first") {
    scheme.refuse("only \"first\", \"always\" and \"never\" are supported");
  } else if (is_never) {
    adds.refuse(fmt::format("prepend_scheme is \"{}\"; expected true", name));
  } else {
    step.prepend = name == "first" ? Prepend::first : Prepend::always;
  }
  return step;
}

JsonPretokenizer read_pretokenizer(const JsonValue& node) {
  JsonPretokenizer result;
  PretokenizerOptions& options = result.options;
  options.use_gpt2_pattern = false;
  if (!node.present()) {
    return result;
  }
  bool has_metaspace = false;
  for (const JsonValue& part : flatten_sequence(node, "pretokenizers")) {
    const std::string& type = part["type"].string();
    if (result.has_byte_level) {
      part["type"].refuse("nothing is supported after \"ByteLevel\"");
    }
    if (type == "Split") {
      options.steps.emplace_back(read_split(part));
    } else if (type == "Digits") {
      options.steps.emplace_back(read_digits(part));
    } else if (type == "Metaspace") {
      if (std::exchange(has_metaspace, true)) {  // each may put something in front of every word
        part["type"].refuse("only one \"Metaspace\" is supported");
      }
      options.steps.emplace_back(read_metaspace(part));
    } else if (type == "ByteLevel") {
      options.add_prefix_space = part["add_prefix_space"].boolean();
      options.use_gpt2_pattern = part["use_regex"].boolean(true);
      result.has_byte_level = true;
    } else {
      part["type"].refuse(
          "only \"ByteLevel\", \"Metaspace\", \"Split\", \"Digits\" and a \"Sequence\" of them are "
          "supported");
    }
  }
  return result;
}

}  // namespace sparsellm
