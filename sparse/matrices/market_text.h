#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/mapped_file.h"
#include "kernels/base/open_directory.h"

namespace sparsellm {

// The lines of a .mtx file (sparse/matrices/matrix_market.h) and what is in them. In the header,
// since a file has hundreds of millions of numbers.
class MarketText {
 public:
  static constexpr int64_t kMaxLineBytes = 1024;  // as the description of the format has it
  static constexpr int64_t kMaxDigits = 18;       // of a count or an index; 64 bits hold it
  static constexpr int64_t kMaxNumber = 999'999'999'999'999'999;
  static constexpr double kTooLarge = 0x1.ffffffp127;  // rounds to infinity in f32

  explicit MarketText(const InputFile& file) : file_(file) {
    next_ = reinterpret_cast<const char*>(file_.bytes().data());
    end_ = next_ + file_.size();
  }

  int64_t size() const { return file_.size(); }
  int64_t bytes_left() const { return end_ - next_; }
  void require_intact() const { file_.require_intact(); }

  // Throws Error about the current line.
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    file_.require_intact();
    fail("{}, line {}: {}", file_.path().string(), line_,
         fmt::format(format, std::forward<Args>(args)...));
  }

  // Of the whole file.
  template <class... Args>
  [[noreturn]] void refuse_file(fmt::format_string<Args...> format, Args&&... args) const {
    file_.require_intact();
    fail("{}: {}", file_.path().string(), fmt::format(format, std::forward<Args>(args)...));
  }

  // As many as there are of so many bytes at the beginning of the file.
  std::string_view head(size_t bytes) const {
    return {reinterpret_cast<const char*>(file_.bytes().data()),
            std::min(bytes, file_.bytes().size())};
  }

  // False at the end of the file.
  bool next_line() {
    if (next_ == end_) {
      return false;
    }
    ++line_;
    const int64_t searched = std::min<int64_t>(end_ - next_, kMaxLineBytes + 2);  // CR, LF
    const void* const newline = std::memchr(next_, '\n', static_cast<size_t>(searched));
    at_ = next_;
    line_end_ = newline == nullptr ? next_ + searched : static_cast<const char*>(newline);
    next_ = newline == nullptr ? line_end_ : line_end_ + 1;
    line_end_ -= line_end_ != at_ && line_end_[-1] == '\r' ? 1 : 0;
    if (line_end_ - at_ > kMaxLineBytes || (newline == nullptr && next_ != end_)) {
      refuse("longer than {} bytes", kMaxLineBytes);
    }
    return true;
  }

  // One with neither nothing nor a comment.
  bool next_filled_line() {
    while (next_line()) {
      skip_blanks();
      if (at_ != line_end_ && *at_ != '%') {
        return true;
      }
    }
    return false;
  }

  // Empty at the end of the line.
  std::string_view word() {
    skip_blanks();
    const char* const begin = at_;
    while (at_ != line_end_ && !is_blank(*at_)) {
      ++at_;
    }
    return {begin, static_cast<size_t>(at_ - begin)};
  }

  // A whole number in [min, max].
  int64_t number(int64_t min, int64_t max, const char* what) {
    skip_blanks();
    const char* const begin = at_;
    int64_t number = 0;
    for (; at_ != line_end_ && is_digit(*at_) && at_ - begin < kMaxDigits; ++at_) {
      number = 10 * number + (*at_ - '0');
    }
    if (at_ == begin || !at_end_of_word() || number < min || number > max) [[unlikely]] {
      at_ = begin;
      refuse("the {} {} is not a whole number from {} to {}", what, quoted_word(), min, max);
    }
    return number;
  }

  double real() {
    skip_blanks();
    const char* const begin = at_;
    double value = 0.0;
    parse_signed(value);
    // NaN is not below.
    if (!(std::abs(value) < kTooLarge)) [[unlikely]] {
      at_ = begin;
      refuse("the value {} is not a number that f32 holds", quoted_word());
    }
    return value;
  }

  double integer() {
    skip_blanks();
    int64_t value = 0;
    parse_signed(value);
    return static_cast<double>(value);
  }

  void require_end_of_line(const char* expected) {
    skip_blanks();
    if (at_ != line_end_) [[unlikely]] {
      refuse("there is {} after {}", quoted_word(), expected);
    }
  }

 private:
  void skip_blanks() {
    while (at_ != line_end_ && is_blank(*at_)) {
      ++at_;
    }
  }
  static bool is_blank(char c) { return c == ' ' || c == '\t'; }
  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  bool at_end_of_word() const { return at_ == line_end_ || is_blank(*at_); }
  std::string quoted_word();

  // from_chars() takes no plus.
  template <class T>
  void parse_signed(T& value) {
    const char* const begin = at_;
    const bool plus = line_end_ - at_ > 1 && *at_ == '+' && at_[1] != '-';
    const auto [end, error] = std::from_chars(at_ + (plus ? 1 : 0), line_end_, value);
    at_ = end;
    if (error != std::errc() || !at_end_of_word()) [[unlikely]] {
      at_ = begin;
      if (error == std::errc::result_out_of_range) {
        refuse("the value {} is out of range", quoted_word());
      }
      refuse("the value {} is not {}", quoted_word(),
             std::is_integral_v<T> ? "a whole number" : "a number");
    }
  }

  MappedFile file_;
  const char* next_ = nullptr;  // where the next line begins
  const char* end_ = nullptr;
  int64_t line_ = 0;
  const char* at_ = nullptr;  // in the line
  const char* line_end_ = nullptr;
};

}  // namespace sparsellm
