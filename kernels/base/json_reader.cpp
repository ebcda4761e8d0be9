#include "kernels/base/json_reader.h"

#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/lfs_pointer.h"
#include "kernels/base/mapped_file.h"

namespace sparsellm {
namespace {

using nlohmann::json;

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

// Others could not be told from the dots and brackets of a path.
bool is_plain_word(std::string_view key) {
  constexpr size_t kMaxLength = 80;
  return !key.empty() && key.size() <= kMaxLength &&
         std::all_of(key.begin(), key.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
         });
}

// nlohmann's own builders keep the last of two equal keys in silence, and the one that takes a
// callback needs quadratic time for an object of objects.
class DocumentBuilder final : public nlohmann::json_sax<json> {
 public:
  DocumentBuilder(std::string_view source, int max_depth)
      : source_(source), max_depth_(static_cast<size_t>(max_depth)) {}

  json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(int64_t value) override { return add(value); }
  bool number_unsigned(uint64_t value) override { return add(value); }
  bool number_float(double value, const std::string&) override { return add(value); }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(json::binary_t&) override { return false; }  // not in text
  bool start_object(size_t) override { return open(json::object()); }
  bool start_array(size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    auto& members = open_.back()->get_ref<json::object_t&>();
    const auto [member, is_new] = members.emplace(name, nullptr);
    if (!is_new) {
      fail("{}: the key {} is there twice", source_, quote(name));
    }
    member_ = &member->second;
    return true;
  }

  bool parse_error(size_t byte, const std::string&, const json::exception& error) override {
    constexpr int kNumberOverflow = 406;
    fail("{}: {} at byte {}", source_,
         error.id == kNumberOverflow ? "number out of range" : "invalid JSON", byte);
  }

 private:
  json* put(json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      return &open_.back()->emplace_back(std::move(value));
    }
    *member_ = std::move(value);
    return member_;
  }
  bool add(json value) {
    put(std::move(value));
    return true;
  }
  bool open(json value) {
    require(open_.size() < max_depth_, "{}: the JSON is nested more than {} levels deep", source_,
            max_depth_);
    open_.push_back(put(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view source_;
  size_t max_depth_;
  json root_;
  std::vector<json*> open_;  // the objects and arrays around the next value
  json* member_ = nullptr;   // of the innermost object, for the value behind a key
};

}  // namespace

json parse_json(std::string_view text, std::string_view source, int max_depth) {
  // The parser would take a NUL byte for the end of the text.
  const size_t nul = text.find('\0');
  require(nul == std::string_view::npos, "{}: invalid JSON at byte {}", source, nul);
  DocumentBuilder builder(source, max_depth);
  json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

json read_json_file(const InputFile& file, int64_t max_bytes, int max_depth) {
  const std::string text = read_text_file(file, max_bytes);
  require_no_lfs_pointer(file.path(), text);
  return parse_json(text, file.string(), max_depth);
}

std::string quote(std::string_view text) {
  constexpr size_t kMaxLength = 100;
  const std::string shown =
      json(text.substr(0, kMaxLength)).dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() > kMaxLength ? shown + "..." : shown;
}

JsonValue::JsonValue(const json& value, std::string name)
    : JsonValue(&value, std::move(name), true) {}

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
  const json* member = found == members.end() ? nullptr : &*found;
  return is_plain_word(key) ? part(member, key, true)
                            : part(member, fmt::format("[{}]", quote(key)), false);
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
