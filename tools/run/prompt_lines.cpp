#include "tools/run/prompt_lines.h"

#include <array>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/json_events.h"
#include "kernels/base/json_reader.h"
#include "tools/run/request_fields.h"

namespace sparsellm {
namespace {

constexpr std::string_view kText = "prompt";
constexpr std::string_view kIds = "prompt_ids";
constexpr int kPromptDepth = 4;

// Those of a line alone.
const std::array kLineFields{
    RequestField{kText, [](const JsonValue& v, Prompt&) { v.string(); }},  // see read_field()
    RequestField{kIds,
                 [](const JsonValue& v, Prompt& p) {
                   v.integers(0, kMaxTokenId);
                   p.request.prompt.clear();
                 },
                 [](const RequestField::Item& item, Prompt& p) {
                   p.request.prompt.push_back(read_token_id(item.field, item.value));
                 }},
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
    field_ = find_field(kLineFields, key);
    if (field_ == nullptr) {
      field_ = find_field(request_fields(), key);
    }
    is_id_ = key == "id";
    if (field_ == nullptr && !is_id_) {
      attempt([&] { fail("{}: unknown field {}", source(), quote(key)); });
    } else if (std::exchange(is_id_ ? seen_id_ : seen_[field_], true)) {
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
  std::unordered_map<const RequestField*, bool> seen_;
  bool has_text_ = false;
  bool has_ids_ = false;

  bool is_id_ = false;                   // of the line's field that is read
  const RequestField* field_ = nullptr;  // the same; nullptr if it is another
  std::optional<JsonValue> name_;        // of the field whose items are read
  std::string key_;                      // of an item
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
