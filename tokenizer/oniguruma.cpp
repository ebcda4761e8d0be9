#include "tokenizer/oniguruma.h"

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"

namespace sparsellm {
namespace {

// Without those of unassigned characters, which differ between Unicode versions.
constexpr std::array<std::string_view, 34> kGeneralCategories = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N", "Nd",
    "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S", "Sm",
    "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "Cc", "Cf", "Co"};

constexpr std::array<std::string_view, 5> kGroups = {"(?:", "(?i:", "(?=", "(?!", "(?>"};

// Pairs of ASCII letters that Oniguruma takes for one character when case is ignored, such as the
// ligature U+FB06 for "st".
constexpr std::array<std::string_view, 5> kFoldedPairs = {"ss", "ff", "fi", "fl", "st"};

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_punctuation(char c) { return c > 0x20 && c < 0x7f && !is_letter(c) && !is_digit(c); }
char to_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    while (!rest().empty()) {
      if (ignores_case()) {
        item_ignoring_case();
      } else {
        item();
      }
    }
    return output_;
  }

 private:
  std::string_view rest() const { return pattern_.substr(position_); }
  bool ignores_case() const { return !groups_.empty() && groups_.back() == "(?i:"; }

  void copy(size_t count) {
    output_ += rest().substr(0, count);
    position_ += count;
  }
  void replace(size_t count, std::string_view text) {
    output_ += text;
    position_ += count;
  }
  [[noreturn]] void refuse(size_t count) const {
    fail("the regular expression {} has {}, which is not supported", quote(pattern_),
         quote(rest().substr(0, count)));
  }

  void item() {
    switch (rest().front()) {
      case '\\':
        return escape();
      case '[':
        return character_class();
      case '(':
        return open_group();
      case ')':
        return close_group();
      case '*':
      case '+':
      case '?':
        return quantifier();
      case '{':
        return counted_quantifier();
      case ']':
      case '}':
      case '^':
      case '$':
        refuse(1);
      default:
        copy(1);
    }
  }

  void item_ignoring_case() {
    const char c = rest().front();
    if (c == ')') {
      return close_group();
    }
    if (!is_letter(c) && c != '\'' && c != '|') {
      refuse(1);
    }
    if (rest().size() > 1) {
      const char pair[] = {to_lower(c), to_lower(rest()[1])};
      if (std::count(kFoldedPairs.begin(), kFoldedPairs.end(), std::string_view(pair, 2)) > 0) {
        refuse(2);
      }
    }
    copy(1);
  }

  void open_group() {
    if (rest().starts_with("(*")) {
      refuse(2);  // a control verb in PCRE2
    }
    if (!rest().starts_with("(?")) {
      groups_.push_back("(");
      return copy(1);
    }
    for (std::string_view group : kGroups) {
      if (rest().starts_with(group)) {
        groups_.push_back(group);
        return copy(group.size());
      }
    }
    refuse(3);
  }

  void close_group() {
    if (groups_.empty()) {
      refuse(1);
    }
    groups_.pop_back();
    copy(1);
  }

  void quantifier() {
    copy(1);
    // Lazy and possessive; "+" after it would be possessive in PCRE2 only.
    if (rest().starts_with('?') || rest().starts_with('+')) {
      copy(1);
    }
    refuse_quantifier();
  }

  void counted_quantifier() {
    size_t length = 1;
    const auto digits = [&] {
      const size_t begin = length;
      while (length < rest().size() && is_digit(rest()[length])) {
        ++length;
      }
      return length > begin;
    };
    const auto take = [&](char c) {
      const bool found = length < rest().size() && rest()[length] == c;
      length += found ? 1 : 0;
      return found;
    };
    const bool has_minimum = digits();
    if (take(',')) {
      digits();
    }
    if (!has_minimum || !take('}')) {
      refuse(length);
    }
    copy(length);
    refuse_quantifier();
  }

  // Oniguruma repeats a repetition where PCRE2 sees a modifier or an error.
  void refuse_quantifier() const {
    if (!rest().empty() &&
        std::string_view("*+?{").find(rest().front()) != std::string_view::npos) {
      refuse(1);
    }
  }

  void escape() {
    if (rest().size() < 2) {
      refuse(1);
    }
    const char c = rest()[1];
    switch (c) {
      case 's':
        return replace(2, "\\p{White_Space}");
      case 'S':
        return replace(2, "\\P{White_Space}");
      case 'v':
        return replace(2, "\\x0b");
      case 'p':
      case 'P':
        return property();
      case 'd':
      case 'D':
      case 'n':
      case 'r':
      case 't':
      case 'f':
        return copy(2);
      default:
        if (!is_punctuation(c)) {
          refuse(2);
        }
        copy(2);
    }
  }

  void property() {
    const size_t close = rest().find('}');
    if (rest().size() < 3 || rest()[2] != '{' || close == std::string_view::npos) {
      refuse(3);
    }
    const std::string_view name = rest().substr(3, close - 3);
    if (std::count(kGeneralCategories.begin(), kGeneralCategories.end(), name) == 0) {
      refuse(close + 1);
    }
    copy(close + 1);
  }

  void character_class() {
    copy(rest().starts_with("[^") ? 2 : 1);
    if (rest().starts_with(']')) {
      refuse(1);
    }
    while (!rest().starts_with(']')) {
      if (rest().empty()) {
        fail("the regular expression {} has a class without an end", quote(pattern_));
      }
      if (rest().front() == '[') {
        refuse(1);
      }
      if (rest().starts_with("&&")) {
        refuse(2);
      }
      if (rest().front() == '\\') {
        escape();
      } else {
        copy(1);
      }
    }
    copy(1);
  }

  std::string_view pattern_;
  size_t position_ = 0;
  std::vector<std::string_view> groups_;  // the open ones, outermost first
  std::string output_;
};

}  // namespace

std::string pcre2_from_oniguruma(std::string_view pattern) { return Translator(pattern).run(); }

}  // namespace sparsellm
