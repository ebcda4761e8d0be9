#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sparsellm::general_sparse {

// Reads "WORD ... KEY=VALUE KEY=VALUE ...", with one space between two of them, in the order in
// which the caller asks for them. The text may be hostile: what is not as it is asked for is an
// Error of one line, which begins with `what` and shows the text in question. A number has but one
// way of being written.
class TextFields {
 public:
  TextFields(std::string what, std::string_view text) : what_(std::move(what)), rest_(text) {}

  std::string_view word();
  std::string_view value(std::string_view key);
  // From `least` to `most`.
  int64_t integer(std::string_view key, int64_t least, int64_t most);
  // "3,5,9", of such numbers; none for "".
  std::vector<int64_t> integers(std::string_view key, int64_t least, int64_t most);
  // Nothing may follow.
  void end() const;

  // For values that the caller does not take; `expected` says what it takes.
  [[noreturn]] void refuse(std::string_view key, std::string_view value,
                           std::string_view expected) const;

 private:
  int64_t number(std::string_view key, std::string_view text, int64_t least, int64_t most) const;

  std::string what_;
  std::string_view rest_;
};

// The beginning of a text, for a message: printable ASCII.
std::string shown(std::string_view text);

}  // namespace sparsellm::general_sparse
