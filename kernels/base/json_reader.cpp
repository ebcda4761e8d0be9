#include "kernels/base/json_reader.h"

#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/json_events.h"
#include "kernels/base/lfs_pointer.h"
#include "kernels/base/mapped_file.h"

namespace sparsellm {
namespace {

using nlohmann::json;

// Others could not be told from the dots and brackets of a path.
bool is_plain_word(std::string_view key) {
  constexpr size_t kMaxLength = 80;
  return !key.empty() && key.size() <= kMaxLength &&
         std::all_of(key.begin(), key.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
         });
}

// Leaves nothing in `value` whose destructor would allocate.
void dismantle(json& value) noexcept {
  if (value.is_array()) {
    for (json& element : value.get_ref<json::array_t&>()) {
      dismantle(element);
    }
    value.get_ref<json::array_t&>().clear();
  } else if (value.is_object()) {
    for (auto& [key, member] : value.get_ref<json::object_t&>()) {
      dismantle(member);
    }
    value.get_ref<json::object_t&>().clear();
  }
}

// nlohmann's own builders keep the last of two equal keys in silence, and the one that takes a
// callback needs quadratic time for an object of objects.
class DocumentBuilder final : public JsonEvents {
 public:
  // The document becomes `root`, a null.
  DocumentBuilder(std::string_view source, int max_depth, json& root)
      : JsonEvents(source, max_depth), root_(root) {}

  using JsonEvents::read;

 private:
  void on_value(json& value) override {
    const bool is_open = value.is_structured();
    json* const place = put(value);
    if (is_open) {
      open_.push_back(place);
    }
  }
  void on_end() override { open_.pop_back(); }
  void on_key(std::string& name) override {
    auto& members = open_.back()->get_ref<json::object_t&>();
    const auto [member, is_new] = members.emplace(std::move(name), nullptr);
    if (!is_new) {
      refuse_second(member->first);
    }
    member_ = &member->second;
  }

  json* put(json& value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      return &open_.back()->get_ref<json::array_t&>().emplace_back(std::move(value));
    }
    *member_ = std::move(value);
    return member_;
  }

  json& root_;
  std::vector<json*> open_;  // the objects and arrays around the next value
  json* member_ = nullptr;   // of the innermost object, for the value after a key
};

}  // namespace

JsonDocument::JsonDocument() : root_(std::make_unique<json>()) {}
JsonDocument::JsonDocument(JsonDocument&&) noexcept = default;

JsonDocument& JsonDocument::operator=(JsonDocument&& other) noexcept {
  std::swap(root_, other.root_);
  return *this;
}

JsonDocument::~JsonDocument() {
  if (root_ != nullptr) {
    dismantle(*root_);
  }
}

JsonDocument parse_json(std::string_view text, std::string_view source, int max_depth) {
  JsonDocument document;
  DocumentBuilder(source, max_depth, document.root()).read(text);
  return document;
}

JsonDocument read_json_file(const InputFile& file, int64_t max_bytes, int max_depth) {
  const std::string text = read_text_file(file, max_bytes);
  require_no_lfs_pointer(file.path(), text);
  return parse_json(text, file.string(), max_depth);
}

void remove_member(json& object, const std::string& key) {
  const auto member = object.find(key);
  if (member != object.end()) {
    dismantle(*member);
    object.erase(member);
  }
}

std::optional<int64_t> to_integer(const json& value, int64_t min, int64_t max) {
  if (!value.is_number_integer()) {
    return {};
  }
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX}) {
    return {};
  }
  const auto number = value.get<int64_t>();
  return number >= min && number <= max ? std::optional(number) : std::nullopt;
}

std::string describe(const json& value) {
  if (value.is_string()) {
    return quote(value.get_ref<const std::string&>());
  }
  if (value.is_array()) {
    return "an array";
  }
  if (value.is_object()) {
    return "an object";
  }
  return value.dump();
}

std::string quote(std::string_view text) {
  constexpr size_t kMaxLength = 100;
  const std::string shown =
      json(text.substr(0, kMaxLength)).dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() > kMaxLength ? shown + "..." : shown;
}

JsonValue::JsonValue(const json& value, std::string name)
    : JsonValue(&value, std::move(name), true) {}

JsonValue::JsonValue(const JsonDocument& document, std::string name)
    : JsonValue(document.root(), std::move(name)) {}

JsonValue::JsonValue(const json* value, std::string name, bool is_root)
    : value_(value), name_(std::move(name)), is_root_(is_root) {}

JsonValue JsonValue::part(const json* value, std::string_view step, bool is_word) const {
  const std::string_view separator = is_root_ ? ": " : is_word ? "." : "";
  return JsonValue(value, fmt::format("{}{}{}", name_, separator, step), false);
}

JsonValue JsonValue::named(std::string name) const {
  return JsonValue(value_, std::move(name), true);
}

JsonValue JsonValue::operator[](std::string_view key) const {
  const json& members = object();
  const auto found = members.find(key);
  return member(key, found == members.end() ? nullptr : &*found);
}

JsonValue JsonValue::member(std::string_view key, const json* value) const {
  return is_plain_word(key) ? part(value, key, true)
                            : part(value, fmt::format("[{}]", quote(key)), false);
}

std::vector<std::string> JsonValue::keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object().items()) {
    keys.push_back(key);
  }
  return keys;
}

void JsonValue::allow_only(std::initializer_list<std::string_view> keys) const {
  for (const auto& [key, value] : object().items()) {
    require(std::find(keys.begin(), keys.end(), key) != keys.end(),
            "{} has the unknown key {}; known are {}", name_, quote(key), fmt::join(keys, ", "));
  }
}

bool JsonValue::present() const { return value_ != nullptr && !value_->is_null(); }
bool JsonValue::is_null() const { return value_ != nullptr && value_->is_null(); }
bool JsonValue::is_string() const { return value_ != nullptr && value_->is_string(); }
bool JsonValue::is_array() const { return value_ != nullptr && value_->is_array(); }
bool JsonValue::is_object() const { return value_ != nullptr && value_->is_object(); }

int64_t JsonValue::size() const { return std::ssize(array("expected an array")); }

JsonValue JsonValue::element(int64_t index) const {
  const json& elements = array("expected an array");
  const bool is_there = index >= 0 && index < std::ssize(elements);
  return part(is_there ? &elements[static_cast<size_t>(index)] : nullptr,
              fmt::format("[{}]", index), false);
}

int64_t JsonValue::integer(int64_t min, int64_t max, std::optional<int64_t> fallback) const {
  if (!present() && fallback) {
    return *fallback;
  }
  const auto number = present() ? to_integer(*value_, min, max) : std::nullopt;
  if (!number) {
    refuse(fmt::format("expected an integer from {} to {}", min, max));
  }
  return *number;
}

float JsonValue::number(float min, float max, std::optional<float> fallback) const {
  if (!present() && fallback) {
    return *fallback;
  }
  // Compared as double: a value outside float's range must not be converted.
  if (!present() || !value_->is_number() || !(value_->get<double>() >= min) ||
      !(value_->get<double>() <= max)) {
    refuse(fmt::format("expected a number from {:g} to {:g}", min, max));
  }
  return static_cast<float>(value_->get<double>());
}

bool JsonValue::boolean(std::optional<bool> fallback) const {
  if (!present() && fallback) {
    return *fallback;
  }
  if (!present() || !value_->is_boolean()) {
    refuse("expected true or false");
  }
  return value_->get<bool>();
}

const json& JsonValue::raw() const {
  if (value_ == nullptr) {
    refuse("expected a value");
  }
  return *value_;
}

const std::string& JsonValue::string() const {
  if (!is_string()) {
    refuse("expected a string");
  }
  return value_->get_ref<const std::string&>();
}

std::vector<int64_t> JsonValue::integers(int64_t min, int64_t max) const {
  std::vector<int64_t> numbers;
  for (const json& element : array("expected an array of integers")) {
    const auto number = to_integer(element, min, max);
    if (!number) {
      fail("{} holds {}; expected integers from {} to {}", name_, describe(element), min, max);
    }
    numbers.push_back(*number);
  }
  return numbers;
}

std::vector<std::string> JsonValue::strings() const {
  std::vector<std::string> texts;
  for (const json& element : array("expected an array of strings")) {
    if (!element.is_string()) {
      fail("{} holds {}; expected strings", name_, describe(element));
    }
    texts.push_back(element.get<std::string>());
  }
  return texts;
}

std::map<std::string, std::string> JsonValue::string_map() const {
  std::map<std::string, std::string> texts;
  for (const auto& [key, value] : object().items()) {
    texts.emplace(key, value.is_string() ? value.get<std::string>() : (*this)[key].string());
  }
  return texts;
}

std::unordered_map<std::string, int32_t> JsonValue::integer_map(int32_t min, int32_t max) const {
  std::unordered_map<std::string, int32_t> numbers;
  for (const auto& [key, value] : object().items()) {
    const auto number = to_integer(value, min, max);
    // Only for its message: to name all members of a vocabulary would take most of the time.
    numbers.emplace(key, static_cast<int32_t>(number ? *number : (*this)[key].integer(min, max)));
  }
  return numbers;
}

const json& JsonValue::object() const {
  if (!is_object()) {
    refuse("expected an object");
  }
  return *value_;
}

const json& JsonValue::array(std::string_view expected) const {
  if (!is_array()) {
    refuse(expected);
  }
  return *value_;
}

void JsonValue::refuse(std::string_view why) const {
  if (value_ == nullptr) {
    fail("{} is missing; {}", name_, why);
  }
  fail("{} is {}; {}", name_, describe(*value_), why);
}

}  // namespace sparsellm
