#include "sparse/general_sparse/text_fields.h"

#include <algorithm>
#include <charconv>
#include <system_error>

#include "kernels/base/error.h"

namespace sparsellm::general_sparse {

std::string_view TextFields::word() {
  const size_t space = rest_.find(' ');
  const std::string_view word = rest_.substr(0, space);
  // A space that nothing follows stays, for end() to find.
  const bool more = space != std::string_view::npos && space + 1 < rest_.size();
  rest_.remove_prefix(more ? space + 1 : word.size());
  return word;
}

std::string_view TextFields::value(std::string_view key) {
  const std::string_view field = word();
  require(field.size() > key.size() && field.starts_with(key) && field[key.size()] == '=',
          "{}: expected '{}=', found '{}'", what_, key, shown(field));
  return field.substr(key.size() + 1);
}

int64_t TextFields::integer(std::string_view key, int64_t least, int64_t most) {
  return number(key, value(key), least, most);
}

std::vector<int64_t> TextFields::integers(std::string_view key, int64_t least, int64_t most) {
  std::string_view list = value(key);
  std::vector<int64_t> numbers;
  bool more = !list.empty();
  while (more) {
    const size_t comma = list.find(',');
    numbers.push_back(number(key, list.substr(0, comma), least, most));
    more = comma != std::string_view::npos;
    list.remove_prefix(more ? comma + 1 : list.size());
  }
  return numbers;
}

void TextFields::end() const {
  require(rest_.empty(), "{}: nothing should follow, but '{}' does", what_, shown(rest_));
}

void TextFields::refuse(std::string_view key, std::string_view value,
                        std::string_view expected) const {
  fail("{}: {} is '{}'; expected {}", what_, key, shown(value), expected);
}

int64_t TextFields::number(std::string_view key, std::string_view text, int64_t least,
                           int64_t most) const {
  int64_t parsed = 0;
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, parsed);
  if (error != std::errc() || stopped != end || text != fmt::format("{}", parsed) ||
      parsed < least || parsed > most) {
    refuse(key, text, fmt::format("a whole number from {} to {}", least, most));
  }
  return parsed;
}

std::string shown(std::string_view text) {
  constexpr size_t kMost = 40;
  std::string start(text.substr(0, kMost));
  std::replace_if(
      start.begin(), start.end(), [](char c) { return c < 0x20 || c > 0x7e; }, '?');
  return text.size() > kMost ? start + "..." : start;
}

}  // namespace sparsellm::general_sparse
