#include "kernels/base/json_events.h"

#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"

namespace sparsellm {

using nlohmann::json;

JsonEvents::JsonEvents(std::string_view source, int max_depth)
    : source_(source), max_depth_(max_depth) {}

void JsonEvents::read(std::string_view text) {
  // The parser would take a NUL byte for the end of the text.
  const size_t nul = text.find('\0');
  require(nul == std::string_view::npos, "{}: invalid JSON at byte {}", source_, nul);
  json::sax_parse(text.begin(), text.end(), static_cast<nlohmann::json_sax<json>*>(this));
}

void JsonEvents::refuse_second(std::string_view key) const {
  fail("{}: the key {} is there twice", source_, quote(key));
}

bool JsonEvents::null() { return add(nullptr); }
bool JsonEvents::boolean(bool value) { return add(value); }
bool JsonEvents::number_integer(int64_t value) { return add(value); }
bool JsonEvents::number_unsigned(uint64_t value) { return add(value); }
bool JsonEvents::number_float(double value, const std::string&) { return add(value); }
bool JsonEvents::string(std::string& value) { return add(std::move(value)); }
bool JsonEvents::binary(json::binary_t&) { return false; }  // not in text
bool JsonEvents::start_object(size_t) { return open(json::object()); }
bool JsonEvents::start_array(size_t) { return open(json::array()); }
bool JsonEvents::end_object() { return close(); }
bool JsonEvents::end_array() { return close(); }

bool JsonEvents::key(std::string& name) {
  on_key(name);
  return true;
}

bool JsonEvents::parse_error(size_t byte, const std::string&, const json::exception& error) {
  constexpr int kNumberOverflow = 406;
  fail("{}: {} at byte {}", source_,
       error.id == kNumberOverflow ? "number out of range" : "invalid JSON", byte);
}

bool JsonEvents::add(json value) {
  on_value(value);
  return true;
}

bool JsonEvents::open(json value) {
  require(depth_ < max_depth_, "{}: the JSON is nested more than {} levels deep", source_,
          max_depth_);
  on_value(value);
  ++depth_;
  return true;
}

bool JsonEvents::close() {
  on_end();
  --depth_;
  return true;
}

}  // namespace sparsellm
