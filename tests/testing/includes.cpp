#include "tests/testing/includes.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

namespace sparsellm::testing {
namespace {

void skip_blanks(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
}

bool take(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) {
    return false;
  }
  text.remove_prefix(word.size());
  return true;
}

std::optional<Include> include_in(std::string_view line) {
  skip_blanks(line);
  if (!take(line, "#")) {
    return std::nullopt;
  }
  skip_blanks(line);
  if (!take(line, "include")) {
    return std::nullopt;
  }
  skip_blanks(line);
  const bool angled = take(line, "<");
  if (!angled && !take(line, "\"")) {
    return std::nullopt;
  }
  const size_t end = line.find(angled ? '>' : '"');
  if (end == 0 || end == std::string_view::npos) {
    return std::nullopt;
  }
  return Include{.target = std::string(line.substr(0, end)), .angled = angled};
}

}  // namespace

std::vector<Include> read_includes(std::istream& text) {
  std::vector<Include> includes;
  std::string line;
  while (std::getline(text, line)) {
    if (std::optional<Include> include = include_in(line)) {
      includes.push_back(*std::move(include));
    }
  }
  return includes;
}

}  // namespace sparsellm::testing
