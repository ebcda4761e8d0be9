#include "kernels/base/json_writer.h"

#include <cassert>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"

namespace sparsellm {

using nlohmann::json;

JsonWriter& JsonWriter::end() {
  assert(!levels_.empty() && !after_key_);
  const Level level = levels_.back();
  levels_.pop_back();
  if (!level.empty) {
    new_line();
  }
  text_ += level.end;
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  assert(!levels_.empty() && levels_.back().end == '}' && !after_key_);
  begin_item();
  text_.append(quoted(name)).append(indent_ < 0 ? ":" : ": ");
  after_key_ = true;
  return *this;
}

JsonWriter& JsonWriter::value(std::string_view text) { return add(quoted(text)); }
JsonWriter& JsonWriter::value(double number) { return add(json(number).dump()); }

JsonWriter& JsonWriter::open(char begin, char end) {
  levels_.reserve(levels_.size() + 1);
  add({&begin, 1});
  levels_.push_back({.end = end});
  return *this;
}

JsonWriter& JsonWriter::add(std::string_view token) {
  if (!std::exchange(after_key_, false) && !levels_.empty()) {
    begin_item();
  }
  text_ += token;
  return *this;
}

std::string JsonWriter::quoted(std::string_view text) const {
  if (invalid_utf8_ == InvalidUtf8::replaced) {
    return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
  }
  try {
    return json(text).dump();
  } catch (const json::type_error&) {
    fail("{} is not UTF-8", quote(text));
  }
}

void JsonWriter::begin_item() {
  if (!std::exchange(levels_.back().empty, false)) {
    text_ += ',';
  }
  new_line();
}

void JsonWriter::new_line() {
  if (indent_ >= 0) {
    text_.append("\n").append(levels_.size() * static_cast<size_t>(indent_), ' ');
  }
}

}  // namespace sparsellm
