#include "sparse/general_sparse/offset_function.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>

#include "kernels/base/error.h"
#include "sparse/general_sparse/text_fields.h"

namespace sparsellm::general_sparse {
namespace {

using Form = OffsetFunction::Form;

constexpr int64_t kLeastOffset = std::numeric_limits<int64_t>::min();
constexpr int64_t kMostOffset = std::numeric_limits<int64_t>::max();
constexpr std::array kFormNames{"linear",          "branch",           "cyclic",
                                "quasi-linear-u8", "quasi-linear-u16", "array"};
static_assert(kFormNames.size() == std::variant_size_v<Form>);

template <class... Functions>
struct FormVisitor : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
FormVisitor(Functions...) -> FormVisitor<Functions...>;

size_t place_of(int64_t i) { return static_cast<size_t>(i); }

// a * i + b and a - b modulo 2^64, where overflow is defined.
int64_t line_at(int64_t a, int64_t i, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(i) +
                              static_cast<uint64_t>(b));
}
int64_t difference_of(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
}

std::optional<Form> as_linear(std::span<const int64_t> offsets) {
  LinearOffsets linear;
  linear.b = offsets.empty() ? 0 : offsets[0];
  linear.a = offsets.size() < 2 ? 0 : difference_of(offsets[1], offsets[0]);
  for (size_t i = 0; i < offsets.size(); ++i) {
    if (offsets[i] != line_at(linear.a, static_cast<int64_t>(i), linear.b)) {
      return {};
    }
  }
  return linear;
}

std::optional<Form> as_branch(std::span<const int64_t> offsets) {
  BranchOffsets branch;
  for (size_t i = 0; i < offsets.size(); ++i) {
    if (i + 1 == offsets.size() || offsets[i + 1] != offsets[i]) {
      if (branch.ends.size() == kMaxBranchValues) {
        return {};
      }
      branch.ends.push_back(static_cast<int64_t>(i) + 1);
      branch.values.push_back(offsets[i]);
    }
  }
  return branch;
}

std::optional<Form> as_cyclic(std::span<const int64_t> offsets) {
  for (size_t period = 2; period <= std::min(kMaxPeriod, offsets.size() / 2); ++period) {
    const int64_t a = difference_of(offsets[period], offsets[0]);
    bool repeats = true;
    for (size_t i = 0; i + period < offsets.size() && repeats; ++i) {
      repeats = difference_of(offsets[i + period], offsets[i]) == a;
    }
    if (repeats) {
      const std::span<const int64_t> cycle = offsets.first(period);
      return CyclicOffsets{.a = a, .c = {cycle.begin(), cycle.end()}};
    }
  }
  return {};
}

// The least and the largest of offsets[i] - a * i.
std::pair<int64_t, int64_t> deviations(std::span<const int64_t> offsets, int64_t a) {
  int64_t least = offsets[0];
  int64_t most = offsets[0];
  int64_t line = 0;
  for (const int64_t offset : offsets) {
    least = std::min(least, offset - line);
    most = std::max(most, offset - line);
    line += a;
  }
  return {least, most};
}

// The slope that leaves the narrowest range of residuals, if that is at most u16's. The range is a
// convex function of the slope, and between the first and the last offset no slope may be farther
// off than the residuals reach.
std::optional<int64_t> best_slope(std::span<const int64_t> offsets) {
  constexpr int64_t kLargest = int64_t{1} << 60;  // then nothing below overflows
  constexpr int64_t kReach = std::numeric_limits<uint16_t>::max();
  const bool small = std::all_of(offsets.begin(), offsets.end(), [](int64_t offset) {
    return offset >= -kLargest && offset <= kLargest;
  });
  if (offsets.size() < 2 || !small) {
    return {};
  }
  const int64_t steps = std::ssize(offsets) - 1;
  const int64_t rise = offsets.back() - offsets.front();
  // Rounded towards zero: at most one slope more on each side.
  int64_t low = (rise - kReach) / steps;
  int64_t high = (rise + kReach) / steps;
  const auto range = [&offsets](int64_t slope) {
    const auto [least, most] = deviations(offsets, slope);
    return most - least;
  };
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (range(middle) <= range(middle + 1)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

template <class Residual>
std::optional<Form> as_quasi_linear(std::span<const int64_t> offsets, int64_t a) {
  const auto [least, most] = deviations(offsets, a);
  if (most - least > int64_t{std::numeric_limits<Residual>::max()}) {
    return {};
  }
  QuasiLinearOffsets<Residual> line{.a = a, .b = least, .residuals = {}};
  line.residuals.reserve(offsets.size());
  for (size_t i = 0; i < offsets.size(); ++i) {
    const int64_t residual = difference_of(offsets[i], line_at(a, static_cast<int64_t>(i), line.b));
    line.residuals.push_back(static_cast<Residual>(residual));
  }
  return line;
}

Form cheapest_form(std::span<const int64_t> offsets) {
  for (const auto candidate : {as_linear, as_branch, as_cyclic}) {
    if (std::optional<Form> form = candidate(offsets)) {
      return *std::move(form);
    }
  }
  if (const std::optional<int64_t> slope = best_slope(offsets)) {
    for (const auto candidate : {as_quasi_linear<uint8_t>, as_quasi_linear<uint16_t>}) {
      if (std::optional<Form> form = candidate(offsets, *slope)) {
        return *std::move(form);
      }
    }
  }
  return StoredOffsets{.values = {offsets.begin(), offsets.end()}};
}

bool is_u32(int64_t value) {
  return value >= 0 && value <= int64_t{std::numeric_limits<uint32_t>::max()};
}

// Whether a * 0 + b, ..., a * (count - 1) + b are u32, without going through all of them.
bool line_is_u32(int64_t a, int64_t b, int64_t count) {
  int64_t rise = 0;
  int64_t last = 0;
  return count == 0 || (is_u32(b) && !__builtin_mul_overflow(a, count - 1, &rise) &&
                        !__builtin_add_overflow(rise, b, &last) && is_u32(last));
}

bool all_u32(const std::vector<int64_t>& values) {
  return std::all_of(values.begin(), values.end(), is_u32);
}

bool cycle_is_u32(const CyclicOffsets& cyclic, int64_t count) {
  const auto period = std::ssize(cyclic.c);
  for (int64_t first = 0; first < period; ++first) {
    if (!line_is_u32(cyclic.a, cyclic.c[place_of(first)], (count - first - 1) / period + 1)) {
      return false;
    }
  }
  return true;
}

template <class Value>
std::vector<std::byte> table_bytes(const std::vector<Value>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(Value));
  if (!bytes.empty()) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
  }
  return bytes;
}

// A constant of the device.
std::string word_text(int64_t value) { return fmt::format("{}u", static_cast<uint32_t>(value)); }

std::string line_text(int64_t a, int64_t b) {
  if (static_cast<uint32_t>(a) == 0) {
    return word_text(b);
  }
  return fmt::format("{} * i + {}", word_text(a), word_text(b));
}

std::string branch_text(const BranchOffsets& branch) {
  std::string text;
  for (size_t k = 0; k + 1 < branch.ends.size(); ++k) {
    text += fmt::format("i < {} ? {} : ", word_text(branch.ends[k]), word_text(branch.values[k]));
  }
  return text + word_text(branch.values.back());
}

std::string loaded_text(const char* type) {
  return fmt::format("static_cast<const {}*>(table)[i]", type);
}

template <class Residual>
std::string quasi_linear_text(const QuasiLinearOffsets<Residual>& line) {
  return fmt::format(
      "{} + {}", line_text(line.a, line.b),
      loaded_text(std::is_same_v<Residual, uint8_t> ? "unsigned char" : "unsigned short"));
}

void require_identifier(std::string_view name) {
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  const bool good = !name.empty() && is_letter(name[0]) &&
                    std::all_of(name.begin(), name.end(),
                                [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); });
  require(good, "offset function: '{}' is not a name", shown(name));
}

// --- Text.

LinearOffsets read_linear(TextFields& fields) {
  LinearOffsets linear;
  linear.a = fields.integer("a", kLeastOffset, kMostOffset);
  linear.b = fields.integer("b", kLeastOffset, kMostOffset);
  return linear;
}

BranchOffsets read_branch(TextFields& fields, int64_t count) {
  BranchOffsets branch;
  branch.ends = fields.integers("ends", 1, count);
  branch.values = fields.integers("values", kLeastOffset, kMostOffset);
  require(!branch.ends.empty() && branch.ends.size() <= kMaxBranchValues,
          "offset function: {} ends of branches; expected 1 to {}", branch.ends.size(),
          kMaxBranchValues);
  require(branch.values.size() == branch.ends.size(), "offset function: {} values of {} branches",
          branch.values.size(), branch.ends.size());
  for (size_t k = 1; k < branch.ends.size(); ++k) {
    require(branch.ends[k] > branch.ends[k - 1],
            "offset function: a branch ends at {} after one that ends at {}", branch.ends[k],
            branch.ends[k - 1]);
  }
  require(branch.ends.back() == count, "offset function: the last branch ends at {} of {}",
          branch.ends.back(), count);
  return branch;
}

CyclicOffsets read_cyclic(TextFields& fields, int64_t count) {
  CyclicOffsets cyclic;
  cyclic.a = fields.integer("a", kLeastOffset, kMostOffset);
  cyclic.c = fields.integers("c", kLeastOffset, kMostOffset);
  const auto most = std::min(static_cast<int64_t>(kMaxPeriod), count / 2);
  require(cyclic.c.size() >= 2 && std::ssize(cyclic.c) <= most,
          "offset function: a cycle of {} offsets; expected 2 to {}", cyclic.c.size(), most);
  return cyclic;
}

template <class Residual>
QuasiLinearOffsets<Residual> read_quasi_linear(TextFields& fields, int64_t count) {
  const auto [a, b] = read_linear(fields);
  const std::vector<int64_t> residuals =
      fields.integers("residuals", 0, std::numeric_limits<Residual>::max());
  require(std::ssize(residuals) == count, "offset function: {} residuals of {} offsets",
          residuals.size(), count);
  QuasiLinearOffsets<Residual> line{.a = a, .b = b, .residuals = {}};
  line.residuals.reserve(residuals.size());
  for (const int64_t residual : residuals) {
    line.residuals.push_back(static_cast<Residual>(residual));
  }
  return line;
}

StoredOffsets read_stored(TextFields& fields, int64_t count) {
  StoredOffsets stored{.values = fields.integers("values", kLeastOffset, kMostOffset)};
  require(std::ssize(stored.values) == count, "offset function: {} values of {} offsets",
          stored.values.size(), count);
  return stored;
}

Form read_form(std::string_view name, TextFields& fields, int64_t count) {
  switch (std::find(kFormNames.begin(), kFormNames.end(), name) - kFormNames.begin()) {
    case 0:
      return read_linear(fields);
    case 1:
      return read_branch(fields, count);
    case 2:
      return read_cyclic(fields, count);
    case 3:
      return read_quasi_linear<uint8_t>(fields, count);
    case 4:
      return read_quasi_linear<uint16_t>(fields, count);
    default:
      return read_stored(fields, count);
  }
}

template <class Values>
std::string comma_list(const Values& values) {
  return fmt::format("{}", fmt::join(values, ","));
}

}  // namespace

OffsetFunction OffsetFunction::of(std::span<const int64_t> offsets) {
  return {std::ssize(offsets), cheapest_form(offsets)};
}

OffsetFunction OffsetFunction::of(std::span<const uint32_t> offsets) {
  return of(std::span<const int64_t>(std::vector<int64_t>(offsets.begin(), offsets.end())));
}

int64_t OffsetFunction::operator()(int64_t i) const {
  assert(i >= 0 && i < count_);
  return std::visit(
      FormVisitor{[i](const LinearOffsets& linear) { return line_at(linear.a, i, linear.b); },
                  [i](const BranchOffsets& branch) {
                    const auto end = std::upper_bound(branch.ends.begin(), branch.ends.end(), i);
                    return branch.values[place_of(end - branch.ends.begin())];
                  },
                  [i](const CyclicOffsets& cyclic) {
                    const auto period = std::ssize(cyclic.c);
                    return line_at(cyclic.a, i / period, cyclic.c[place_of(i % period)]);
                  },
                  [i](const StoredOffsets& stored) { return stored.values[place_of(i)]; },
                  [i](const auto& line) {
                    return line_at(1, line_at(line.a, i, line.b),
                                   int64_t{line.residuals[place_of(i)]});
                  }},
      form_);
}

bool OffsetFunction::fits_u32() const {
  return std::visit(
      FormVisitor{
          [this](const LinearOffsets& linear) { return line_is_u32(linear.a, linear.b, count_); },
          [](const BranchOffsets& branch) { return all_u32(branch.values); },
          [this](const CyclicOffsets& cyclic) { return cycle_is_u32(cyclic, count_); },
          [](const StoredOffsets& stored) { return all_u32(stored.values); },
          [this](const auto&) {
            for (int64_t i = 0; i < count_; ++i) {
              if (!is_u32((*this)(i))) {
                return false;
              }
            }
            return true;
          }},
      form_);
}

int64_t OffsetFunction::bytes() const {
  return std::visit(
      FormVisitor{[](const LinearOffsets&) { return int64_t{0}; },
                  [](const BranchOffsets&) { return int64_t{0}; },
                  [](const CyclicOffsets&) { return int64_t{0}; },
                  [](const StoredOffsets& stored) {
                    const size_t each = all_u32(stored.values) ? sizeof(uint32_t) : sizeof(int64_t);
                    return static_cast<int64_t>(stored.values.size() * each);
                  },
                  [](const auto& line) {
                    return static_cast<int64_t>(line.residuals.size() * sizeof(line.residuals[0]));
                  }},
      form_);
}

std::vector<std::byte> OffsetFunction::table() const {
  require(fits_u32(), "offset function: offsets of kernels are from 0 to 2^32 - 1");
  return std::visit(FormVisitor{[](const LinearOffsets&) { return std::vector<std::byte>(); },
                                [](const BranchOffsets&) { return std::vector<std::byte>(); },
                                [](const CyclicOffsets&) { return std::vector<std::byte>(); },
                                [](const StoredOffsets& stored) {
                                  return table_bytes(std::vector<uint32_t>(stored.values.begin(),
                                                                           stored.values.end()));
                                },
                                [](const auto& line) { return table_bytes(line.residuals); }},
                    form_);
}

std::string OffsetFunction::to_source(std::string_view name) const {
  require_identifier(name);
  require(fits_u32(), "offset function: offsets of kernels are from 0 to 2^32 - 1");
  std::string before;
  const std::string value = std::visit(
      FormVisitor{[](const LinearOffsets& linear) { return line_text(linear.a, linear.b); },
                  [](const BranchOffsets& branch) { return branch_text(branch); },
                  [&](const CyclicOffsets& cyclic) {
                    const size_t period = cyclic.c.size();
                    std::vector<std::string> words;
                    std::transform(cyclic.c.begin(), cyclic.c.end(), std::back_inserter(words),
                                   word_text);
                    before = fmt::format("__device__ const unsigned {}_cycle[{}] = {{{}}};\n", name,
                                         period, fmt::join(words, ", "));
                    return fmt::format("{} * (i / {}u) + {}_cycle[i % {}u]", word_text(cyclic.a),
                                       period, name, period);
                  },
                  [](const StoredOffsets&) { return loaded_text("unsigned"); },
                  [](const auto& line) { return quasi_linear_text(line); }},
      form_);
  return fmt::format(
      "{}__device__ inline unsigned {}(unsigned i, const void* table) {{\n  return {};\n}}\n",
      before, name, value);
}

std::string OffsetFunction::to_text() const {
  const std::string start = fmt::format("{} count={} ", kFormNames[form_.index()], count_);
  return start +
         std::visit(FormVisitor{[](const LinearOffsets& linear) {
                                  return fmt::format("a={} b={}", linear.a, linear.b);
                                },
                                [](const BranchOffsets& branch) {
                                  return fmt::format("ends={} values={}", comma_list(branch.ends),
                                                     comma_list(branch.values));
                                },
                                [](const CyclicOffsets& cyclic) {
                                  return fmt::format("a={} c={}", cyclic.a, comma_list(cyclic.c));
                                },
                                [](const StoredOffsets& stored) {
                                  return fmt::format("values={}", comma_list(stored.values));
                                },
                                [](const auto& line) {
                                  return fmt::format("a={} b={} residuals={}", line.a, line.b,
                                                     comma_list(line.residuals));
                                }},
                    form_);
}

OffsetFunction OffsetFunction::from_text(std::string_view text) {
  TextFields fields("offset function", text);
  const std::string_view name = fields.word();
  require(std::find(kFormNames.begin(), kFormNames.end(), name) != kFormNames.end(),
          "offset function: '{}' is no form; expected one of {}", shown(name),
          fmt::join(kFormNames, ", "));
  const int64_t count = fields.integer("count", 0, kMostOffset);
  Form form = read_form(name, fields, count);
  fields.end();
  return {count, std::move(form)};
}

}  // namespace sparsellm::general_sparse
