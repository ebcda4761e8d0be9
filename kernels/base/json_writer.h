#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sparsellm {

// What becomes of text that is not UTF-8, which JSON cannot hold: U+FFFD, or Error.
enum class InvalidUtf8 : uint8_t { replaced, refused };

// Puts JSON together as text. A tree would take many times the memory, and nlohmann's takes some
// more to be destroyed, where the program ends if there is none.
//   JsonWriter json;
//   json.object().key("tokens").value(7).key("texts").array().value("a").end().end();
//   std::move(json).text();  // {"tokens":7,"texts":["a"]}
class JsonWriter {
 public:
  // Spaces by which each level is set off, on lines of its own; -1: all on one line.
  explicit JsonWriter(int indent = -1, InvalidUtf8 invalid_utf8 = InvalidUtf8::replaced)
      : indent_(indent), invalid_utf8_(invalid_utf8) {}

  JsonWriter& object() { return open('{', '}'); }
  JsonWriter& array() { return open('[', ']'); }
  JsonWriter& end();  // of the innermost of them
  JsonWriter& key(std::string_view name);

  JsonWriter& value(std::string_view text);
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(double number);  // null unless it is finite
  template <std::integral Number>
  JsonWriter& value(Number number) {
    if constexpr (std::same_as<Number, bool>) {
      return add(number ? "true" : "false");
    } else {
      return add(std::to_string(number));
    }
  }
  JsonWriter& null() { return add("null"); }

  // key() and value().
  template <class Value>
  JsonWriter& member(std::string_view name, const Value& of) {
    return key(name).value(of);
  }

  std::string text() && { return std::move(text_); }

 private:
  struct Level {
    char end;
    bool empty = true;
  };

  JsonWriter& open(char begin, char end);
  JsonWriter& add(std::string_view token);
  std::string quoted(std::string_view text) const;
  void begin_item();
  void new_line();

  int indent_;
  InvalidUtf8 invalid_utf8_;
  std::string text_;
  std::vector<Level> levels_;
  bool after_key_ = false;
};

}  // namespace sparsellm
