#include "tools/bench/suite/suite_lists.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

constexpr size_t kMostSuiteText = 400;  // characters

template <class T>
void require_each_once(const JsonValue& list, const std::vector<T>& values) {
  std::set<T> seen;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!seen.insert(values[i]).second) {
      list.element(static_cast<int64_t>(i)).refuse("it is in the list already");
    }
  }
}

}  // namespace

void require_suite_list(const JsonValue& list) {
  const int64_t size = list.size();
  require(size >= 1 && size <= kMaxSuiteList, "{} has {} elements; expected 1 to {}", list.name(),
          size, kMaxSuiteList);
}

std::vector<std::string> read_suite_texts(const JsonValue& list) {
  require_suite_list(list);
  std::vector<std::string> texts = list.strings();
  require_each_once(list, texts);
  return texts;
}

std::vector<int64_t> read_suite_integers(const JsonValue& list, int64_t min, int64_t max) {
  require_suite_list(list);
  std::vector<int64_t> numbers = list.integers(min, max);
  require_each_once(list, numbers);
  return numbers;
}

std::vector<double> read_suite_numbers(const JsonValue& list, double max) {
  require_suite_list(list);
  std::vector<double> numbers;
  for (int64_t i = 0; i < list.size(); ++i) {
    numbers.push_back(read_suite_number(list.element(i), max));
  }
  require_each_once(list, numbers);
  return numbers;
}

double read_suite_number(const JsonValue& value, double max) {
  value.number(0.0f, static_cast<float>(max));
  const double number = value.raw().get<double>();
  return std::clamp(number, 0.0, max) + 0.0;  // no -0
}

std::string read_suite_text(const JsonValue& value) {
  const std::string& text = value.string();
  const bool is_line = std::ranges::none_of(
      text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
  if (text.empty() || text.size() > kMostSuiteText || !is_line) {
    value.refuse(fmt::format("expected one line of 1 to {} characters", kMostSuiteText));
  }
  return text;
}

}  // namespace sparsellm
