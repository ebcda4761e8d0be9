#include "tools/serve/completion_body.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/json_events.h"
#include "kernels/base/json_reader.h"
#include "tools/run/request_fields.h"

namespace sparsellm {
namespace {

constexpr int kBodyDepth = 4;
constexpr std::string_view kBody = "the body";

// They say who asks, and how soon, and nothing of the answer.
constexpr std::array<std::string_view, 4> kPassedOver{"user", "metadata", "store", "service_tier"};

class BodyEvents final : private JsonEvents {
 public:
  explicit BodyEvents(CompletionBody& body) : JsonEvents(kBody, kBodyDepth), body_(body) {}

  void read(std::string_view text) {
    JsonEvents::read(text);
    require(!body_.prompts.empty(), "prompt is missing or empty");
    for (const auto& prompt : body_.prompts) {
      const bool empty = std::visit([](const auto& of) { return of.empty(); }, prompt);
      require(!empty, "prompt is empty");
    }
    const Request& request = body_.common.request;
    validate(request.sampling);
    require(request.max_tokens >= 0, "max_tokens is negative");
    require(!best_of_ || *best_of_ == request.samples,
            "best_of is {}, but n is {}: continuations are not chosen among others",
            best_of_.value_or(0), request.samples);
  }

 private:
  void on_key(std::string& key) override {
    if (depth() > 1) {
      key_ = std::move(key);
      return;
    }
    if (!seen_.insert(key).second) {
      refuse_second(key);
    }
    name_ = std::move(key);
    shared_ = find_field(request_fields(), name_);
  }

  void on_value(nlohmann::json& value) override {
    const int at = depth();
    if (at == 0) {
      JsonValue(value, std::string(kBody)).keys();  // an object
    } else if (at == 1) {
      skipped_ = value.is_null() || is_passed_over();
      if (!skipped_) {
        read_field(value);
      }
    } else if (skipped_) {
    } else if (name_ == "prompt") {
      add_to_prompt(value);
    } else if (name_ == "stream_options") {
      require(key_ == "include_usage", "stream_options: unknown field {}", quote(key_));
      if (std::exchange(has_include_usage_, true)) {
        refuse_second(key_);
      }
      body_.include_usage =
          !value.is_null() && JsonValue(value, "stream_options.include_usage").boolean();
    } else if (at == 2 && shared_ != nullptr && shared_->add != nullptr) {
      shared_->add({.field = JsonValue(value, name_), .key = key_, .value = value}, body_.common);
    }
  }

  void on_end() override {}

  bool is_passed_over() const {
    return std::find(kPassedOver.begin(), kPassedOver.end(), name_) != kPassedOver.end();
  }

  void read_field(nlohmann::json& value) {
    const JsonValue field(value, name_);
    if (shared_ != nullptr) {
      shared_->read(field, body_.common);
      body_.has_max_tokens = body_.has_max_tokens || name_ == "max_tokens";
    } else if (name_ == "prompt") {
      read_prompt(value);
    } else if (name_ == "model") {
      body_.model = field.string();
    } else if (name_ == "stream") {
      body_.stream = field.boolean();
    } else if (name_ == "stream_options") {
      field.keys();
    } else if (name_ == "best_of") {
      best_of_ = static_cast<int32_t>(field.integer(1, kMaxSamples));
    } else if (name_ == "suffix") {
      require(field.string().empty(), "suffix is not supported");
    } else if (name_ == "add_special_tokens") {
      body_.common.add_special_tokens = field.boolean();
    } else if (name_ == "skip_special_tokens") {
      body_.common.request.show_special_tokens = !field.boolean();
    } else {
      fail("{} is not supported", quote(name_));
    }
  }

  void read_prompt(nlohmann::json& value) {
    if (value.is_string()) {
      body_.prompts.emplace_back(std::move(value.get_ref<std::string&>()));
    } else {
      require(value.is_array(), "prompt is {}; expected text, token ids, or an array of either",
              describe(value));
    }
  }

  // Numbers of the array itself are one prompt; arrays and texts in it are one each.
  void add_to_prompt(nlohmann::json& value) {
    const bool in_array = depth() > 2;
    if (value.is_number()) {
      if (!in_array && body_.prompts.empty()) {
        body_.prompts.emplace_back(std::vector<int32_t>());
        flat_ = true;
      }
      require(in_array || flat_, "prompt has both token ids and prompts");
      std::get<std::vector<int32_t>>(body_.prompts.back())
          .push_back(read_token_id(JsonValue(value, "prompt"), value));
      return;
    }
    require(!in_array && (value.is_string() || value.is_array()),
            "prompt holds {}; expected text, token ids, or arrays of token ids", describe(value));
    require(!flat_, "prompt has both token ids and prompts");
    require(body_.prompts.size() < kMaxBodyPrompts, "prompt has more than {} elements",
            kMaxBodyPrompts);
    if (value.is_string()) {
      body_.prompts.emplace_back(std::move(value.get_ref<std::string&>()));
    } else {
      body_.prompts.emplace_back(std::vector<int32_t>());
    }
  }

  CompletionBody& body_;
  std::set<std::string> seen_;
  std::string name_;                      // of the field that is read
  const RequestField* shared_ = nullptr;  // the same
  bool skipped_ = false;                  // the same
  std::string key_;                       // of a member of it
  bool flat_ = false;                     // prompt is one array of token ids
  bool has_include_usage_ = false;
  std::optional<int32_t> best_of_;
};

}  // namespace

CompletionBody read_completion_body(std::string_view text, const Prompt& defaults) {
  CompletionBody body;
  body.common = defaults;
  BodyEvents(body).read(text);
  return body;
}

}  // namespace sparsellm
