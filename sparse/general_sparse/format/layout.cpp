#include "sparse/general_sparse/format/layout.h"

#include <algorithm>
#include <array>
#include <bit>

#include "kernels/base/error.h"
#include "sparse/general_sparse/text_fields.h"

namespace sparsellm::general_sparse {
namespace {

constexpr int64_t kLeastPanelColumns = 64;
constexpr int64_t kMostPanelColumns = 65536;
constexpr int kWarpLanes = 32;
constexpr int kMostVector = 8;

// In the order of their enumerators.
constexpr std::array<std::string_view, 5> kPositionCodes{"u8", "i8", "u16", "u32", "bits"};
constexpr std::array<std::string_view, 2> kSorted{"no", "yes"};

std::string_view code_name(PositionCode code) {
  return kPositionCodes.at(static_cast<size_t>(code));
}

// The place of a field's value among the words that it may be.
template <size_t count>
size_t read_word(TextFields& fields, std::string_view key,
                 const std::array<std::string_view, count>& words) {
  const std::string_view value = fields.value(key);
  const auto found = std::find(words.begin(), words.end(), value);
  if (found == words.end()) {
    fields.refuse(key, value, fmt::format("one of {}", fmt::join(words, ", ")));
  }
  return static_cast<size_t>(found - words.begin());
}

bool is_power_from(int64_t value, int64_t least, int64_t most) {
  return value >= least && value <= most && std::has_single_bit(static_cast<uint64_t>(value));
}

}  // namespace

std::optional<std::string> why_invalid(const Layout& layout) {
  const auto no_power = [](const char* name, int64_t value, int64_t least, int64_t most) {
    return fmt::format("{}={} is no power of 2 from {} to {}", name, value, least, most);
  };
  if (!is_power_from(layout.shared_rows, 1, kMostSharedRows)) {
    return no_power("shared-rows", layout.shared_rows, 1, kMostSharedRows);
  }
  if (layout.panel_columns == 0 && layout.positions != PositionCode::u32) {
    return fmt::format("panel=0, which is one of all columns, but positions={}, not u32",
                       code_name(layout.positions));
  }
  if (layout.panel_columns != 0 &&
      !is_power_from(layout.panel_columns, kLeastPanelColumns, kMostPanelColumns)) {
    return no_power("panel", layout.panel_columns, kLeastPanelColumns, kMostPanelColumns);
  }
  if (layout.interleave != 1 && layout.interleave != kWarpLanes) {
    return fmt::format("interleave={} is neither 1 nor {}", layout.interleave, kWarpLanes);
  }
  if (!is_power_from(layout.vector, 1, kMostVector)) {
    return no_power("vector", layout.vector, 1, kMostVector);
  }
  const int64_t least = int64_t{layout.interleave} * layout.shared_rows;
  const int64_t most = kMostWindowGroups * layout.shared_rows;
  if (!is_power_from(layout.window_rows, least, most)) {
    return no_power("window", layout.window_rows, least, most) +
           fmt::format(", for shared-rows={} interleave={}", layout.shared_rows, layout.interleave);
  }
  return {};
}

std::string to_text(const Layout& layout) {
  return fmt::format(
      "positions={} shared-rows={} panel={} window={} sorted={} interleave={} vector={}",
      code_name(layout.positions), layout.shared_rows, layout.panel_columns, layout.window_rows,
      kSorted.at(layout.sorted ? 1 : 0), layout.interleave, layout.vector);
}

Layout layout_from(std::string_view text) {
  TextFields fields("layout", text);
  Layout layout;
  layout.positions = static_cast<PositionCode>(read_word(fields, "positions", kPositionCodes));
  layout.shared_rows = static_cast<int>(fields.integer("shared-rows", 1, kMostSharedRows));
  layout.panel_columns = fields.integer("panel", 0, kMostPanelColumns);
  layout.window_rows = fields.integer("window", 1, kMostWindowGroups * kMostSharedRows);
  layout.sorted = read_word(fields, "sorted", kSorted) == 1;
  layout.interleave = static_cast<int>(fields.integer("interleave", 1, kWarpLanes));
  layout.vector = static_cast<int>(fields.integer("vector", 1, kMostVector));
  fields.end();
  if (const std::optional<std::string> reason = why_invalid(layout)) {
    fail("layout: {}", *reason);
  }
  return layout;
}

}  // namespace sparsellm::general_sparse
