#include "kernels/base/json_writer.h"

#include <cassert>
#include <nlohmann/json.hpp>
#include <utility>

namespace sparsellm {
namespace {

std::string dump(const nlohmann::json& scalar) {
  return scalar.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

JsonWriter& JsonWriter::end() {
  assert(!levels_.empty() && !behind_key_);
  const Level level = levels_.back();
  levels_.pop_back();
  if (!level.empty) {
    new_line();
  }
  text_ += level.end;
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  assert(!levels_.empty() && levels_.back().end == '}' && !behind_key_);
  begin_item();
  text_.append(dump(name)).append(indent_ < 0 ? ":" : ": ");
  behind_key_ = true;
  return *this;
}

JsonWriter& JsonWriter::value(std::string_view text) { return add(dump(text)); }
JsonWriter& JsonWriter::value(double number) { return add(dump(number)); }

JsonWriter& JsonWriter::open(char begin, char end) {
  levels_.reserve(levels_.size() + 1);
  add({&begin, 1});
  levels_.push_back({.end = end});
  return *this;
}

JsonWriter& JsonWriter::add(std::string_view token) {
  if (!std::exchange(behind_key_, false) && !levels_.empty()) {
    begin_item();
  }
  text_ += token;
  return *this;
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
