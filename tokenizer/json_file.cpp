#include "tokenizer/json_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/mapped_file.h"

namespace sparsellm {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 32;

std::string describe(const json& value) {
  if (value.is_string()) {
    return in_quotes(value.get_ref<const std::string&>());
  }
  if (value.is_array()) {
    return "an array";
  }
  if (value.is_object()) {
    return "an object";
  }
  return value.dump();
}

bool is_token_id(const json& value) {
  // The parser makes every integer that is not negative an unsigned one.
  return value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t{INT32_MAX};
}

// What a member's name adds to the object's; keys such as tokens may hold anything.
std::string member_suffix(std::string_view object, std::string_view key) {
  const bool is_word = key.size() <= 80 && std::all_of(key.begin(), key.end(), [](char c) {
                         return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
                       });
  if (!is_word) {
    return fmt::format("[{}]", in_quotes(key));
  }
  return fmt::format("{}{}", object.ends_with(':') ? " " : ".", key);
}

}  // namespace

json read_tokenizer_json(const std::filesystem::path& path) {
  const std::string text = read_text_file(path, kMaxTokenizerFileBytes);
  const auto check_depth = [&](int depth, json::parse_event_t, json&) {
    require(depth <= kMaxDepth, "{}: the JSON is nested more than {} levels deep", path.string(),
            kMaxDepth);
    return true;
  };
  try {
    return json::parse(text, check_depth);
  } catch (const json::parse_error& error) {
    fail("{}: invalid JSON at byte {}", path.string(), error.byte);
  } catch (const json::exception&) {
    fail("{}: the JSON has a number that is out of range", path.string());
  }
}

std::string in_quotes(std::string_view text) {
  constexpr size_t kMaxLength = 80;
  const std::string shown =
      json(text.substr(0, kMaxLength)).dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() > kMaxLength ? shown + "..." : shown;
}

JsonNode::JsonNode(const json* value, std::string name) : value_(value), name_(std::move(name)) {}

JsonNode JsonNode::operator[](std::string_view key) const {
  const json& members = object();
  const auto found = members.find(key);
  return {found == members.end() ? nullptr : &*found, name_ + member_suffix(name_, key)};
}

bool JsonNode::present() const { return value_ != nullptr && !value_->is_null(); }
bool JsonNode::is_string() const { return present() && value_->is_string(); }
bool JsonNode::is_object() const { return present() && value_->is_object(); }

const std::string& JsonNode::string() const {
  if (!is_string()) {
    refuse("expected a string");
  }
  return value_->get_ref<const std::string&>();
}

bool JsonNode::boolean(std::optional<bool> fallback) const {
  if (!present() && fallback) {
    return *fallback;
  }
  if (!present() || !value_->is_boolean()) {
    refuse("expected true or false");
  }
  return value_->get<bool>();
}

int32_t JsonNode::token_id() const {
  if (!present() || !is_token_id(*value_)) {
    refuse("expected a token id, an integer from 0 to 2147483647");
  }
  return value_->get<int32_t>();
}

std::unordered_map<std::string, int32_t> JsonNode::token_ids() const {
  std::unordered_map<std::string, int32_t> ids;
  for (const auto& [token, id] : object().items()) {
    // Names only for messages would take most of the time.
    ids.emplace(token, is_token_id(id) ? id.get<int32_t>() : (*this)[token].token_id());
  }
  return ids;
}

const json& JsonNode::object() const {
  if (!is_object()) {
    refuse("expected an object");
  }
  return *value_;
}

const json& JsonNode::array() const {
  if (!present() || !value_->is_array()) {
    refuse("expected an array");
  }
  return *value_;
}

void JsonNode::refuse(std::string_view why) const {
  if (value_ == nullptr) {
    fail("{} is missing; {}", name_, why);
  }
  fail("{} is {}; {}", name_, describe(*value_), why);
}

}  // namespace sparsellm
