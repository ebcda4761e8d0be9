#include "tools/run/request_fields.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

// More than there are tokens in any vocabulary.
constexpr size_t kMaxLogitBiases = 1 << 20;

// Of any size that float has: what makes sense is for validate() to say.
float read_float(const JsonValue& value) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  return value.number(-kLargest, kLargest);
}

void add_stop(const JsonValue& field, const nlohmann::json& element, Request& request) {
  if (!element.is_string()) {
    fail("{} holds {}; expected strings", field.name(), describe(element));
  }
  const auto& text = element.get_ref<const std::string&>();
  require(!text.empty(), "{} has an empty text", field.name());
  require(text.size() <= kMaxStopBytes, "{} has a text of {} bytes; use at most {}", field.name(),
          text.size(), kMaxStopBytes);
  request.stop.push_back(text);
}

LogitBias read_logit_bias(const JsonValue& field, const std::string& key,
                          const nlohmann::json& value) {
  LogitBias bias;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), bias.token);
  require(error == std::errc() && end == key.data() + key.size() && bias.token >= 0,
          "{} has the key {}; expected a token id", field.name(), quote(key));
  bias.bias = read_float(field.member(key, &value));
  return bias;
}

std::optional<uint64_t> read_seed(const JsonValue& value) {
  const int64_t seed = value.integer(-1, kMaxSeed);
  return seed < 0 ? std::nullopt : std::optional(static_cast<uint64_t>(seed));
}

// Throws Error if there is no room for one more.
template <class Items>
void require_room(const JsonValue& field, const Items& items, size_t most) {
  require(items.size() < most, "{} has more than {} elements", field.name(), most);
}

const std::array kRequestFields{
    RequestField{"max_tokens",
                 [](const JsonValue& v, Prompt& p) {
                   p.request.max_tokens = v.integer(-1, kMaxGeneratedTokens);
                 }},
    RequestField{"temperature", [](const JsonValue& v,
                                   Prompt& p) { p.request.sampling.temperature = read_float(v); }},
    RequestField{"top_k",
                 [](const JsonValue& v, Prompt& p) {
                   p.request.sampling.top_k = static_cast<int32_t>(v.integer(0, kMaxTokenId));
                 }},
    RequestField{"top_p",
                 [](const JsonValue& v, Prompt& p) { p.request.sampling.top_p = read_float(v); }},
    RequestField{"min_p",
                 [](const JsonValue& v, Prompt& p) { p.request.sampling.min_p = read_float(v); }},
    RequestField{"repetition_penalty",
                 [](const JsonValue& v, Prompt& p) {
                   p.request.sampling.repetition_penalty = read_float(v);
                 }},
    RequestField{"frequency_penalty",
                 [](const JsonValue& v, Prompt& p) {
                   p.request.sampling.frequency_penalty = read_float(v);
                 }},
    RequestField{
        "presence_penalty",
        [](const JsonValue& v, Prompt& p) { p.request.sampling.presence_penalty = read_float(v); }},
    RequestField{"logit_bias",
                 [](const JsonValue& v, Prompt& p) {
                   v.keys();
                   p.request.sampling.logit_bias.clear();
                 },
                 [](const RequestField::Item& item, Prompt& p) {
                   require_room(item.field, p.request.sampling.logit_bias, kMaxLogitBiases);
                   p.request.sampling.logit_bias.push_back(
                       read_logit_bias(item.field, item.key, item.value));
                 }},
    RequestField{"seed", [](const JsonValue& v, Prompt& p) { p.request.seed = read_seed(v); }},
    RequestField{"ignore_eos",
                 [](const JsonValue& v, Prompt& p) { p.request.ignore_eos = v.boolean(); }},
    RequestField{"stop",
                 [](const JsonValue& v, Prompt& p) {
                   p.request.stop.clear();
                   if (v.is_string()) {
                     add_stop(v, v.raw(), p.request);
                   } else {
                     v.strings();
                   }
                 },
                 [](const RequestField::Item& item, Prompt& p) {
                   require_room(item.field, p.request.stop, kMaxStops);
                   add_stop(item.field, item.value, p.request);
                 }},
    RequestField{"stop_token_ids",
                 [](const JsonValue& v, Prompt& p) {
                   v.integers(0, kMaxTokenId);
                   p.request.stop_token_ids.clear();
                 },
                 [](const RequestField::Item& item, Prompt& p) {
                   require_room(item.field, p.request.stop_token_ids, kMaxStopTokens);
                   p.request.stop_token_ids.push_back(read_token_id(item.field, item.value));
                 }},
    RequestField{"n",
                 [](const JsonValue& v, Prompt& p) {
                   p.request.samples = static_cast<int32_t>(v.integer(1, kMaxSamples));
                 }},
    RequestField{"logprobs",
                 [](const JsonValue& v, Prompt& p) {
                   p.request.log_probs = static_cast<int32_t>(v.integer(0, kMaxTopLogProbs));
                 }},
    RequestField{"echo", [](const JsonValue& v, Prompt& p) { p.echo = v.boolean(); }},
};

}  // namespace

std::span<const RequestField> request_fields() { return kRequestFields; }

const RequestField* find_field(std::span<const RequestField> fields, std::string_view name) {
  const auto found = std::find_if(fields.begin(), fields.end(),
                                  [name](const RequestField& field) { return field.name == name; });
  return found == fields.end() ? nullptr : &*found;
}

int32_t read_token_id(const JsonValue& field, const nlohmann::json& element) {
  const std::optional<int64_t> id = to_integer(element, 0, kMaxTokenId);
  if (!id) {
    fail("{} holds {}; expected integers from 0 to {}", field.name(), describe(element),
         kMaxTokenId);
  }
  return static_cast<int32_t>(*id);
}

}  // namespace sparsellm
