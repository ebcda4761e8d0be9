#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sparsellm {

// A JSON document that may be hostile. Throws Error, beginning with `source`, for text that is not
// JSON, for objects and arrays nested more than `max_depth` deep, and for an object that has a key
// twice (JSON parsers disagree on which of the two counts).
nlohmann::json parse_json(std::string_view text, std::string_view source, int max_depth);

// A name out of a file, for messages: in quotes, on one line of ASCII, shortened if it is long.
std::string quote(std::string_view name);

// A typed view of a part of a JSON document; it owns nothing but its name. Every read checks the
// JSON type and the range and throws Error with the name, the value and what was expected.
class JsonValue {
 public:
  // `name` is the source of the document, or what it should be called in messages.
  JsonValue(const nlohmann::json& value, std::string name);

  // The member `key` of an object; absent if the object has none.
  JsonValue operator[](std::string_view key) const;
  // Throws Error for a member of an object that is not one of `keys`.
  void allow_only(std::initializer_list<std::string_view> keys) const;

  bool present() const;  // neither absent nor null
  bool is_null() const;
  bool is_array() const;

  // The value if it is present, else `fallback`; without one an absent value is an Error. Bounds
  // are inclusive.
  int64_t integer(int64_t min, int64_t max, std::optional<int64_t> fallback = {}) const;
  float number(float min, float max, std::optional<float> fallback = {}) const;
  bool boolean(std::optional<bool> fallback = {}) const;

  const std::string& string() const;
  std::vector<int64_t> integers(int64_t min, int64_t max) const;  // an array of integers
  std::vector<std::string> strings() const;                       // an array of strings
  std::map<std::string, std::string> string_map() const;          // an object with only strings

  // Throws Error "<name> is <value>; <why>".
  [[noreturn]] void refuse(std::string_view why) const;
  const std::string& name() const { return name_; }

 private:
  JsonValue() = default;

  const nlohmann::json* value_ = nullptr;  // nullptr if absent
  std::string name_;
  std::string_view separator_ = ": ";  // between this name and a member's
};

}  // namespace sparsellm
