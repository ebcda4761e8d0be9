#include "tests/fuzz/input_parts.h"

#include <algorithm>

namespace sparsellm::fuzz {

std::vector<std::string_view> split_parts(std::string_view input, size_t count) {
  std::vector<std::string_view> parts;
  while (parts.size() + 1 < count) {
    const std::string_view part = input.substr(0, input.find('\xff'));
    parts.push_back(part);
    input.remove_prefix(std::min(part.size() + 1, input.size()));
  }
  parts.push_back(input);
  return parts;
}

}  // namespace sparsellm::fuzz
