#include "tools/serve/tokenize.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "kernels/base/json_writer.h"
#include "tools/run/request_fields.h"

namespace sparsellm {
namespace {

constexpr int kDepth = 2;

void check_model(const CompletionContext& context, const JsonValue& model) {
  if (model.present() && model.string() != context.model) {
    throw UnknownModel(fmt::format("the model {} does not exist; {} does", quote(model.string()),
                                   quote(context.model)));
  }
}

}  // namespace

std::string tokenize(const CompletionContext& context, std::string_view body) {
  const JsonDocument document = parse_json(body, "the body", kDepth);
  const JsonValue root(document, "the body");
  root.allow_only({"model", "prompt", "add_special_tokens"});
  check_model(context, root["model"]);
  const std::vector<int32_t> tokens = context.tokenizer.encode(
      root["prompt"].string(), {.add_special_tokens = root["add_special_tokens"].boolean(true)});
  JsonWriter json;
  json.object().member("count", tokens.size()).member("max_model_len", context.context_size);
  json.key("tokens").array();
  for (const int32_t token : tokens) {
    json.value(token);
  }
  json.end().end();
  return std::move(json).text();
}

std::string detokenize(const CompletionContext& context, std::string_view body) {
  const JsonDocument document = parse_json(body, "the body", kDepth);
  const JsonValue root(document, "the body");
  root.allow_only({"model", "tokens"});
  check_model(context, root["model"]);
  std::vector<int32_t> tokens;
  for (const int64_t token : root["tokens"].integers(0, context.tokenizer.vocab_size() - 1)) {
    tokens.push_back(static_cast<int32_t>(token));
  }
  JsonWriter json;
  json.object().member("prompt", decode(context.tokenizer, tokens, /*show_special=*/true)).end();
  return std::move(json).text();
}

}  // namespace sparsellm
