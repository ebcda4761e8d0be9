#include <spdlog/fmt/fmt.h>

#include <utility>

#include "kernels/base/error.h"
#include "tokenizer/tokenizer_json_parts.h"

namespace sparsellm {
namespace {

// The parts of a decoder in their order. Those before "Fuse" see one token, "Strip" after it the
// whole text.
class DecoderReader {
 public:
  void read(const JsonValue& part) {
    const JsonValue type = part["type"];
    const std::string& name = type.string();
    if (name == "Replace" || name == "Metaspace") {
      if (options_.byte_fallback || is_fused_) {
        type.refuse("it is not supported after \"ByteFallback\" and \"Fuse\"");
      }
      if (options_.steps.size() == kMaxSteps) {
        type.refuse(fmt::format("at most {} of these steps are supported", kMaxSteps));
      }
      if (name == "Replace") {
        read_replace(part);
      } else {
        read_metaspace_decoder(part);
      }
    } else if (name == "ByteFallback") {
      if (is_fused_) {
        type.refuse("it is not supported after \"Fuse\"");
      }
      options_.byte_fallback = true;
    } else if (name == "Fuse") {
      is_fused_ = true;
    } else if (name == "Strip") {
      read_strip(part);
    } else {
      type.refuse(
          "only \"Replace\", \"Metaspace\", \"ByteFallback\", \"Fuse\", \"Strip\" and a "
          "\"Sequence\" of them are supported, and \"ByteLevel\" if the pre-tokenizer has it");
    }
  }

  DecoderOptions finish() { return std::move(options_); }

 private:
  static constexpr size_t kMaxSteps = 16;

  // Tokens never grow: files could make them as long as they like.
  void read_replace(const JsonValue& part) {
    DecoderOptions::Replace step{read_string_pattern(part["pattern"]),
                                 read_step_text(part["content"])};
    if (step.content.size() > step.pattern.size()) {
      part["content"].refuse("only as many bytes as the pattern has are supported");
    }
    options_.steps.emplace_back(std::move(step));
  }

  void read_metaspace_decoder(const JsonValue& part) {
    MetaspaceStep step = read_metaspace(part);
    const bool prepended = step.prepend != MetaspaceStep::Prepend::never;
    options_.steps.emplace_back(DecoderOptions::Metaspace{std::move(step.replacement), prepended});
    strips_first_ = strips_first_ || prepended;
  }

  void read_strip(const JsonValue& part) {
    if (const JsonValue stop = part["stop"]; stop.integer(0, INT64_MAX) != 0) {
      stop.refuse("only 0 is supported");
    }
    const JsonValue start = part["start"];
    const int64_t count = start.integer(0, INT64_MAX);
    if (count == 0) {
      return;
    }
    if (count != 1 || options_.strip_leading_space) {
      start.refuse("only one space in front of the text is supported");
    }
    if (const JsonValue content = part["content"]; content.string() != " ") {
      content.refuse("only \" \" is supported");
    }
    if (!is_fused_) {
      part["type"].refuse("it is supported only after \"Fuse\"");
    }
    if (strips_first_) {
      part["type"].refuse("it is not supported together with a \"Metaspace\" that prepends");
    }
    options_.strip_leading_space = true;
  }

  DecoderOptions options_;
  bool is_fused_ = false;
  bool strips_first_ = false;
};

}  // namespace

DecoderOptions read_decoder(const JsonValue& node, bool is_byte_level) {
  if (!node.present()) {
    node.refuse("without a decoder there are spaces between tokens, which is not supported");
  }
  const std::vector<JsonValue> parts = flatten_sequence(node, "decoders");
  if (is_byte_level) {
    for (const JsonValue& part : parts) {
      if (part["type"].string() != "ByteLevel") {
        part["type"].refuse("with the pre-tokenizer \"ByteLevel\" only \"ByteLevel\" is supported");
      }
    }
    return {.byte_level = true};
  }
  DecoderReader reader;
  for (const JsonValue& part : parts) {
    reader.read(part);
  }
  return reader.finish();
}

}  // namespace sparsellm
