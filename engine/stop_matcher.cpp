#include "engine/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace sparsellm {

std::string StopMatcher::add(std::string_view piece) {
  if (found_) {
    return {};
  }
  held_ += piece;
  size_t begin = std::string::npos;  // of the stop text that is complete first
  size_t end = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at != std::string::npos && std::pair(at + stop.size(), at) < std::pair(end, begin)) {
      begin = at;
      end = at + stop.size();
    }
  }
  if (begin != std::string::npos) {
    found_ = true;
    held_.resize(begin);
    return std::exchange(held_, {});
  }
  size_t kept = 0;  // bytes at the end that a stop text may begin with
  for (const std::string& stop : stops_) {
    for (size_t length = std::min(stop.size() - 1, held_.size()); length > kept; --length) {
      if (held_.ends_with(std::string_view(stop).substr(0, length))) {
        kept = length;
      }
    }
  }
  std::string shown = held_.substr(0, held_.size() - kept);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopMatcher::finish() { return std::exchange(held_, {}); }

}  // namespace sparsellm
