#include "tools/bench/sse_parser.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// Where a line ends: a carriage return, a newline, or both. Searched in the order in which either
// is found quickly.
size_t line_end(std::string_view bytes) {
  const size_t newline = bytes.find('\n');
  return std::min(newline, bytes.substr(0, newline).find('\r'));
}

}  // namespace

void SseParser::add(std::string_view bytes, const OnData& on_data) {
  while (!bytes.empty()) {
    if (after_return_ && bytes.front() == '\n') {
      bytes.remove_prefix(1);
    }
    after_return_ = false;
    const size_t end = line_end(bytes);
    const std::string_view part = bytes.substr(0, end);
    require(line_.size() + part.size() <= kMaxBytes, "an event has a line of more than {} bytes",
            kMaxBytes);
    if (end == std::string_view::npos) {
      line_ += part;
      return;
    }
    after_return_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    if (line_.empty()) {
      take_line(part, on_data);
    } else {
      line_ += part;
      take_line(line_, on_data);
      line_.clear();
    }
  }
}

void SseParser::take_line(std::string_view line, const OnData& on_data) {
  if (!begun_ && line.starts_with(kByteOrderMark)) {
    line.remove_prefix(kByteOrderMark.size());
  }
  begun_ = true;
  if (line.empty()) {
    if (has_data_) {
      on_data(data_);
    }
    data_.clear();
    has_data_ = false;
    return;
  }
  const size_t colon = line.find(':');
  if (line.substr(0, colon) != "data") {
    return;  // a comment begins with a colon
  }
  std::string_view value = colon == std::string_view::npos ? "" : line.substr(colon + 1);
  value.remove_prefix(value.starts_with(' ') ? 1 : 0);
  require(data_.size() + value.size() < kMaxBytes, "an event has more than {} bytes", kMaxBytes);
  data_ += has_data_ ? "\n" : "";
  data_ += value;
  has_data_ = true;
}

}  // namespace sparsellm
