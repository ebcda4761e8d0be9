#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/base/open_directory.h"

namespace sparsellm {

// A JSON document that may be hostile. Throws Error, beginning with `source`, for text that is not
// JSON, for objects and arrays nested more than `max_depth` deep, and for an object that has a key
// twice (JSON parsers disagree on which of the two counts).
nlohmann::json parse_json(std::string_view text, std::string_view source, int max_depth);

// The document in a file; the errors of read_text_file and, with the path in front, of parse_json.
nlohmann::json read_json_file(const InputFile& file, int64_t max_bytes, int max_depth);

// Text out of a file, for messages: in quotes, on one line of ASCII, shortened if it is long.
std::string quote(std::string_view text);

// A typed view of a part of a JSON document; it owns nothing but its name, the way to the part:
//   config.json: rope_scaling.factor
//   tokenizer.json: added_tokens[3].content
//   tokenizer.json: model.vocab["<s>"]
// Every read checks the JSON type and the range and throws Error with the name, the value and what
// was expected.
class JsonValue {
 public:
  // `name` is the source of the document, or what it should be called in messages.
  JsonValue(const nlohmann::json& value, std::string name);

  // The same value under another name.
  JsonValue named(std::string name) const;

  // The member `key` of an object; absent if the object has none.
  JsonValue operator[](std::string_view key) const;
  std::vector<std::string> keys() const;  // of an object
  // Throws Error for a member of an object that is not one of `keys`.
  void allow_only(std::initializer_list<std::string_view> keys) const;

  bool present() const;  // neither absent nor null
  bool is_null() const;
  bool is_string() const;
  bool is_array() const;
  bool is_object() const;

  // The elements of an array; absent at an index that it does not have.
  int64_t size() const;
  JsonValue element(int64_t index) const;

  // The value if it is present, else `fallback`; without one an absent value is an Error. Bounds
  // are inclusive.
  int64_t integer(int64_t min, int64_t max, std::optional<int64_t> fallback = {}) const;
  float number(float min, float max, std::optional<float> fallback = {}) const;
  bool boolean(std::optional<bool> fallback = {}) const;

  const std::string& string() const;
  std::vector<int64_t> integers(int64_t min, int64_t max) const;  // an array of integers
  std::vector<std::string> strings() const;                       // an array of strings
  std::map<std::string, std::string> string_map() const;          // an object with only strings
  // An object with only integers.
  std::unordered_map<std::string, int32_t> integer_map(int32_t min, int32_t max) const;

  // Throws Error "<name> is <value>; <why>".
  [[noreturn]] void refuse(std::string_view why) const;
  const std::string& name() const { return name_; }

 private:
  JsonValue(const nlohmann::json* value, std::string name, bool is_root);

  JsonValue part(const nlohmann::json* value, std::string_view step, bool is_word) const;
  const nlohmann::json& object() const;
  const nlohmann::json& array(std::string_view expected) const;

  const nlohmann::json* value_;  // nullptr if absent
  std::string name_;
  bool is_root_;  // where the way in the names of parts begins
};

}  // namespace sparsellm
