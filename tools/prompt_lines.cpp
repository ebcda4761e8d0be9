#include "tools/prompt_lines.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"

namespace sparsellm {
namespace {

constexpr int kMaxDepth = 4;
constexpr int32_t kMaxToken = std::numeric_limits<int32_t>::max();

// Of any size that float has: what makes sense is for validate() to say.
float read_float(const JsonValue& value) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  return value.number(-kLargest, kLargest);
}

std::vector<int32_t> read_tokens(const JsonValue& value) {
  const std::vector<int64_t> ids = value.integers(0, kMaxToken);
  return std::vector<int32_t>(ids.begin(), ids.end());
}

std::vector<LogitBias> read_logit_bias(const JsonValue& value) {
  std::vector<LogitBias> biases;
  for (const std::string& key : value.keys()) {
    LogitBias bias;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), bias.token);
    require(error == std::errc() && end == key.data() + key.size() && bias.token >= 0,
            "{} has the key {}; expected a token id", value.name(), quote(key));
    bias.bias = read_float(value[key]);
    biases.push_back(bias);
  }
  return biases;
}

std::vector<std::string> read_stop(const JsonValue& value) {
  std::vector<std::string> texts =
      value.is_string() ? std::vector<std::string>{value.string()} : value.strings();
  require(std::none_of(texts.begin(), texts.end(), [](const auto& text) { return text.empty(); }),
          "{} has an empty text", value.name());
  return texts;
}

std::optional<uint64_t> read_seed(const JsonValue& value) {
  const int64_t seed = value.integer(-1, kMaxSeed);
  return seed < 0 ? std::nullopt : std::optional(static_cast<uint64_t>(seed));
}

struct Field {
  std::string_view name;
  void (*read)(const JsonValue& value, Prompt& prompt);
};

const std::array kFields{
    Field{"prompt", [](const JsonValue& v, Prompt& p) { p.text = v.string(); }},
    Field{"prompt_ids", [](const JsonValue& v, Prompt& p) { p.request.prompt = read_tokens(v); }},
    Field{"max_tokens",
          [](const JsonValue& v, Prompt& p) {
            p.request.max_tokens = v.integer(-1, kMaxGeneratedTokens);
          }},
    Field{"temperature",
          [](const JsonValue& v, Prompt& p) { p.request.sampling.temperature = read_float(v); }},
    Field{"top_k",
          [](const JsonValue& v, Prompt& p) {
            p.request.sampling.top_k = static_cast<int32_t>(v.integer(0, kMaxToken));
          }},
    Field{"top_p", [](const JsonValue& v, Prompt& p) { p.request.sampling.top_p = read_float(v); }},
    Field{"min_p", [](const JsonValue& v, Prompt& p) { p.request.sampling.min_p = read_float(v); }},
    Field{"repetition_penalty",
          [](const JsonValue& v, Prompt& p) {
            p.request.sampling.repetition_penalty = read_float(v);
          }},
    Field{"frequency_penalty",
          [](const JsonValue& v, Prompt& p) {
            p.request.sampling.frequency_penalty = read_float(v);
          }},
    Field{
        "presence_penalty",
        [](const JsonValue& v, Prompt& p) { p.request.sampling.presence_penalty = read_float(v); }},
    Field{"logit_bias", [](const JsonValue& v,
                           Prompt& p) { p.request.sampling.logit_bias = read_logit_bias(v); }},
    Field{"seed", [](const JsonValue& v, Prompt& p) { p.request.seed = read_seed(v); }},
    Field{"ignore_eos", [](const JsonValue& v, Prompt& p) { p.request.ignore_eos = v.boolean(); }},
    Field{"stop", [](const JsonValue& v, Prompt& p) { p.request.stop = read_stop(v); }},
    Field{"stop_token_ids",
          [](const JsonValue& v, Prompt& p) { p.request.stop_token_ids = read_tokens(v); }},
    Field{"n",
          [](const JsonValue& v, Prompt& p) {
            p.request.samples = static_cast<int32_t>(v.integer(1, kMaxSamples));
          }},
    Field{"logprobs",
          [](const JsonValue& v, Prompt& p) {
            p.request.log_probs = static_cast<int32_t>(v.integer(0, kMaxTopLogProbs));
          }},
    Field{"echo", [](const JsonValue& v, Prompt& p) { p.echo = v.boolean(); }},
};

std::string source_name(int64_t number) { return fmt::format("line {}", number); }

std::string read_id(const JsonValue& line, int64_t number) {
  const JsonValue id = line["id"];
  if (!id.is_string()) {
    return fmt::format("{}", id.integer(std::numeric_limits<int64_t>::min(),
                                        std::numeric_limits<int64_t>::max(), number));
  }
  require(id.string().size() <= kMaxIdBytes, "{} has {} bytes; at most {} are allowed", id.name(),
          id.string().size(), kMaxIdBytes);
  return nlohmann::json(id.string()).dump();
}

void read_fields(const JsonValue& line, Prompt& prompt) {
  for (const std::string& key : line.keys()) {
    const auto field =
        std::find_if(kFields.begin(), kFields.end(), [&](const Field& f) { return f.name == key; });
    require(field != kFields.end() || key == "id", "{}: unknown field {}", line.name(), quote(key));
    if (field != kFields.end() && line[key].present()) {
      field->read(line[key], prompt);
    }
  }
  const bool has_text = line["prompt"].present();
  const bool has_ids = line["prompt_ids"].present();
  require(has_text || has_ids, "{}: prompt is missing", line.name());
  require(!has_text || !has_ids, "{} has both prompt and prompt_ids", line.name());
  try {
    validate(prompt.request.sampling);
  } catch (const Error& error) {
    fail("{}: {}", line.name(), error.what());
  }
}

}  // namespace

PromptLine read_prompt_line(std::string_view text, int64_t number, const Prompt& defaults) {
  PromptLine line{.id = kNoId, .prompt = defaults, .error = {}};
  try {
    const std::string source = source_name(number);
    const nlohmann::json document = parse_json(text, source, kMaxDepth);
    const JsonValue value(document, source);
    line.id = read_id(value, number);
    read_fields(value, line.prompt);
  } catch (const Error& error) {
    line.error = error.what();
  } catch (const std::bad_alloc&) {
    line.error = source_name(number) + ": out of memory";
  }
  return line;
}

std::optional<std::string> read_prompt_id(std::string_view text, int64_t number) {
  try {
    const std::string source = source_name(number);
    const nlohmann::json document = parse_json(text, source, kMaxDepth);
    return read_id(JsonValue(document, source), number);
  } catch (const Error&) {
    return {};
  } catch (const std::bad_alloc&) {
    return {};
  }
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r\n\v\f") == std::string_view::npos;
}

}  // namespace sparsellm
