#include "tools/run/prompt_lines.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/json_events.h"
#include "kernels/base/json_reader.h"

namespace sparsellm {
namespace {

constexpr std::string_view kText = "prompt";
constexpr std::string_view kIds = "prompt_ids";
constexpr int kPromptDepth = 4;
// More than there are tokens in any vocabulary.
constexpr size_t kMaxLogitBiases = 1 << 20;
constexpr int32_t kMaxToken = std::numeric_limits<int32_t>::max();

// Of any size that float has: what makes sense is for validate() to say.
float read_float(const JsonValue& value) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  return value.number(-kLargest, kLargest);
}

int32_t read_token(const JsonValue& field, const nlohmann::json& element) {
  const std::optional<int64_t> id = to_integer(element, 0, kMaxToken);
  if (!id) {
    fail("{} holds {}; expected integers from 0 to {}", field.name(), describe(element), kMaxToken);
  }
  return static_cast<int32_t>(*id);
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

// An element of an array, or a member of an object.
struct Item {
  const JsonValue& field;
  const std::string& key;
  const nlohmann::json& value;
};

struct Field {
  std::string_view name;
  // Of an array or an object, `value` is its beginning: it is empty.
  void (*read)(const JsonValue& value, Prompt& prompt);
  // Of an array or an object, one of its items.
  void (*add)(const Item& item, Prompt& prompt) = nullptr;
};

const std::array kFields{
    Field{kText, [](const JsonValue& v, Prompt&) { v.string(); }},  // see LineEvents::read_field()
    Field{kIds,
          [](const JsonValue& v, Prompt& p) {
            v.integers(0, kMaxToken);
            p.request.prompt.clear();
          },
          [](const Item& item, Prompt& p) {
            p.request.prompt.push_back(read_token(item.field, item.value));
          }},
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
    Field{"logit_bias",
          [](const JsonValue& v, Prompt& p) {
            v.keys();
            p.request.sampling.logit_bias.clear();
          },
          [](const Item& item, Prompt& p) {
            require_room(item.field, p.request.sampling.logit_bias, kMaxLogitBiases);
            p.request.sampling.logit_bias.push_back(
                read_logit_bias(item.field, item.key, item.value));
          }},
    Field{"seed", [](const JsonValue& v, Prompt& p) { p.request.seed = read_seed(v); }},
    Field{"ignore_eos", [](const JsonValue& v, Prompt& p) { p.request.ignore_eos = v.boolean(); }},
    Field{"stop",
          [](const JsonValue& v, Prompt& p) {
            p.request.stop.clear();
            if (v.is_string()) {
              add_stop(v, v.raw(), p.request);
            } else {
              v.strings();
            }
          },
          [](const Item& item, Prompt& p) {
            require_room(item.field, p.request.stop, kMaxStops);
            add_stop(item.field, item.value, p.request);
          }},
    Field{"stop_token_ids",
          [](const JsonValue& v, Prompt& p) {
            v.integers(0, kMaxToken);
            p.request.stop_token_ids.clear();
          },
          [](const Item& item, Prompt& p) {
            require_room(item.field, p.request.stop_token_ids, kMaxStopTokens);
            p.request.stop_token_ids.push_back(read_token(item.field, item.value));
          }},
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

std::string read_id(const JsonValue& id, int64_t number) {
  if (!id.is_string()) {
    return fmt::format("{}", id.integer(std::numeric_limits<int64_t>::min(),
                                        std::numeric_limits<int64_t>::max(), number));
  }
  require(id.string().size() <= kMaxIdBytes, "{} has {} bytes; at most {} are allowed", id.name(),
          id.string().size(), kMaxIdBytes);
  return nlohmann::json(id.string()).dump();
}

// Reads a line into a prompt. An error in what a field holds leaves the rest to be looked through
// for the id: whether a line has one depends on its JSON and on the id alone.
class LineEvents final : private JsonEvents {
 public:
  // Without a `prompt` only the id is read.
  LineEvents(const std::string& source, int64_t number, Prompt* prompt)
      : JsonEvents(source, kPromptDepth),
        number_(number),
        line_(object_, source),
        prompt_(prompt) {}

  // Throws the Error of a text that is not one JSON object, or of the id.
  std::string read(std::string_view text) {
    JsonEvents::read(text);
    if (!id_error_.empty()) {
      throw Error(id_error_);
    }
    attempt([&] { check(); });
    return seen_id_ ? std::move(id_) : read_id(line_["id"], number_);
  }
  const std::string& error() const { return error_; }  // in a field

 private:
  void on_key(std::string& key) override {
    if (depth() > 1) {
      key_ = std::move(key);
      return;
    }
    const auto field =
        std::find_if(kFields.begin(), kFields.end(), [&](const Field& f) { return f.name == key; });
    field_ = field == kFields.end() ? nullptr : &*field;
    is_id_ = key == "id";
    bool& seen = is_id_ ? seen_id_ : seen_[static_cast<size_t>(field - kFields.begin())];
    if (field_ == nullptr && !is_id_) {
      attempt([&] { fail("{}: unknown field {}", source(), quote(key)); });
    } else if (std::exchange(seen, true)) {
      refuse_second(key);
    }
  }

  void on_value(nlohmann::json& value) override {
    if (depth() == 0) {
      JsonValue(value, line_.name()).keys();  // an object
    } else if (depth() == 1 && is_id_) {
      read_line_id(value);
    } else if (depth() == 1 && field_ != nullptr && !value.is_null()) {
      attempt([&] { read_field(value); });
    } else if (depth() == 2 && name_ && prompt_ != nullptr) {
      attempt([&] { field_->add({.field = *name_, .key = key_, .value = value}, *prompt_); });
    }
  }

  void on_end() override {
    if (depth() == 2) {
      name_.reset();
    }
  }

  void read_line_id(const nlohmann::json& value) {
    try {
      id_ = read_id(line_.member("id", &value), number_);
    } catch (const Error& error) {
      id_error_ = error.what();
    }
  }

  void read_field(nlohmann::json& value) {
    has_text_ = has_text_ || field_->name == kText;
    has_ids_ = has_ids_ || field_->name == kIds;
    if (prompt_ == nullptr) {
      return;
    }
    const JsonValue named = line_.member(field_->name, &value);
    field_->read(named, *prompt_);
    if (field_->name == kText) {
      prompt_->text = std::move(value.get_ref<std::string&>());  // it may be most of the line
    }
    if (value.is_structured()) {
      name_ = line_.member(field_->name, nullptr);
    }
  }

  void check() const {
    require(has_text_ || has_ids_, "{}: prompt is missing", source());
    require(!has_text_ || !has_ids_, "{} has both prompt and prompt_ids", source());
    if (prompt_ == nullptr) {
      return;
    }
    try {
      validate(prompt_->request.sampling);
    } catch (const Error& error) {
      fail("{}: {}", source(), error.what());
    }
  }

  // Of the errors in fields the first is kept.
  template <class Body>
  void attempt(Body&& body) {
    if (!error_.empty()) {
      return;
    }
    try {
      body();
    } catch (const Error& error) {
      error_ = error.what();
    }
  }

  const nlohmann::json object_ = nlohmann::json::object();
  int64_t number_;
  JsonValue line_;
  Prompt* prompt_;
  std::string error_;

  std::string id_;
  std::string id_error_;
  bool seen_id_ = false;
  std::array<bool, kFields.size() + 1> seen_{};  // the last for unknown ones
  bool has_text_ = false;
  bool has_ids_ = false;

  bool is_id_ = false;             // of the line's field that is read
  const Field* field_ = nullptr;   // the same; nullptr if it is another
  std::optional<JsonValue> name_;  // of the field whose items are read
  std::string key_;                // of an item
};

}  // namespace

PromptLine read_prompt_line(std::string_view text, int64_t number, const Prompt& defaults) {
  PromptLine line{.id = kNoId, .prompt = defaults, .error = {}};
  try {
    const std::string source = source_name(number);
    LineEvents events(source, number, &line.prompt);
    line.id = events.read(text);
    line.error = events.error();
  } catch (const Error& error) {
    line.error = error.what();
  } catch (const std::bad_alloc&) {
    line.id = read_prompt_id(text, number).value_or(kNoId);
    line.error = source_name(number) + ": out of memory";
  }
  return line;
}

std::optional<std::string> read_prompt_id(std::string_view text, int64_t number) {
  try {
    const std::string source = source_name(number);
    return LineEvents(source, number, nullptr).read(text);
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
