#include "tools/serve/tokenize.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/json_events.h"
#include "kernels/base/json_reader.h"
#include "kernels/base/json_writer.h"
#include "tools/cli/interrupt.h"
#include "tools/run/request_fields.h"

namespace sparsellm {
namespace {

constexpr int kTokenizeDepth = 2;
constexpr std::string_view kTokenizeBody = "the body";

void check_model(const CompletionContext& context, const JsonValue& model) {
  if (model.present() && model.string() != context.model) {
    throw UnknownModel(fmt::format("the model {} does not exist; {} does", quote(model.string()),
                                   quote(context.model)));
  }
}

// The body of /detokenize: as many ids as are allowed, and no more, are held.
class IdsBody final : private JsonEvents {
 public:
  explicit IdsBody(const CompletionContext& context)
      : JsonEvents(kTokenizeBody, kTokenizeDepth), context_(context) {}

  std::vector<int32_t> read(std::string_view text) {
    JsonEvents::read(text);
    require(has_tokens_, "tokens is missing");
    return std::move(tokens_);
  }

 private:
  void on_key(std::string& key) override {
    require(depth() == 1, "{} holds an object", quote(name_));
    require(key == "model" || key == "tokens", "{} is not supported", quote(key));
    if (!seen_.insert(key).second) {
      refuse_second(key);
    }
    name_ = std::move(key);
  }

  void on_value(nlohmann::json& value) override {
    const JsonValue field(value, depth() == 0 ? std::string(kTokenizeBody) : name_);
    if (depth() == 0) {
      field.keys();  // an object
    } else if (depth() == 1 && name_ == "model") {
      check_model(context_, field);
    } else if (depth() == 1) {
      has_tokens_ = field.present();
      require(!has_tokens_ || value.is_array(), "{} is {}; expected an array of token ids", name_,
              describe(value));
    } else {
      const int32_t token = read_token_id(field, value);
      require(token < context_.tokenizer.vocab_size(),
              "{} holds {}, which is outside the vocabulary of {}", name_, token,
              context_.tokenizer.vocab_size());
      require(tokens_.size() < kMaxTokenized, "{} has more than {} elements", name_, kMaxTokenized);
      tokens_.push_back(token);
    }
  }

  void on_end() override {}

  const CompletionContext& context_;
  std::set<std::string> seen_;
  std::string name_;  // of the field that is read
  bool has_tokens_ = false;
  std::vector<int32_t> tokens_;
};

std::vector<int32_t> encode_text(const CompletionContext& context, const std::string& text,
                                 bool add_special_tokens) {
  constexpr auto kMost = static_cast<int64_t>(kMaxTokenized);
  try {
    return context.tokenizer.encode(text, {.add_special_tokens = add_special_tokens,
                                           .max_tokens = kMost,
                                           .poll = throw_if_interrupted});
  } catch (const TooManyTokens&) {
    fail("prompt has {} bytes, which are more than {} tokens", text.size(), kMost);
  }
}

}  // namespace

std::string tokenize(const CompletionContext& context, std::string_view body) {
  const JsonDocument document = parse_json(body, kTokenizeBody, kTokenizeDepth);
  const JsonValue root(document, std::string(kTokenizeBody));
  root.allow_only({"model", "prompt", "add_special_tokens"});
  check_model(context, root["model"]);
  const std::vector<int32_t> tokens =
      encode_text(context, root["prompt"].string(), root["add_special_tokens"].boolean(true));
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
  const std::vector<int32_t> tokens = IdsBody(context).read(body);
  IncrementalDecoder decoder(context.tokenizer, /*continues=*/false, /*show_special=*/true);
  std::string text;
  for (const int32_t token : tokens) {
    text += decoder.add(token);
    require(text.size() <= kMaxDetokenizedBytes, "the text has more than {} bytes",
            kMaxDetokenizedBytes);
  }
  text += decoder.finish();
  JsonWriter json;
  json.object().member("prompt", text).end();
  return std::move(json).text();
}

}  // namespace sparsellm
