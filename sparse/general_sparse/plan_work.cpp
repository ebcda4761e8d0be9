#include "sparse/general_sparse/plan_work.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <span>
#include <string>

#include "kernels/base/error.h"

namespace sparsellm::general_sparse {
namespace {

// The rows that have entries, in the order of the encoding.
struct FilledRows {
  std::vector<uint32_t> begins;  // loads; and where the last one ends

  int64_t count() const { return std::ssize(begins) - 1; }
  int64_t begin(int64_t row) const { return begins[static_cast<size_t>(row)]; }
  int64_t end(int64_t row) const { return begin(row + 1); }
};

FilledRows find_rows(const EncodedRows& encoding, int64_t unit_loads, PlanWork& work) {
  FilledRows filled;
  for (int64_t window = 0; window < encoding.grid.windows(); ++window) {
    const Chunk chunk = encoding.grid.chunk(window, 0);
    for (int64_t place = 0; place < chunk.groups; ++place) {
      const uint32_t* const start = encoding.starts.data() + chunk.first_slice + place;
      const int64_t in_window =
          encoding.layout.sorted
              ? encoding.row_order[static_cast<size_t>(chunk.first_place + place)]
              : place;
      const auto row = static_cast<uint32_t>(chunk.first_group + in_window);
      if (start[0] == start[1]) {
        work.empty_rows.push_back(row);
      } else {
        work.rows.push_back(row);
        filled.begins.push_back(static_cast<uint32_t>(start[0] * unit_loads));
      }
    }
  }
  filled.begins.push_back(static_cast<uint32_t>(work.loads));
  return filled;
}

// Of a group of threads. Its part may have less, or more.
int64_t wanted_group_loads(const KernelPlan& plan, int64_t loads, int64_t rows) {
  constexpr int64_t kMostOfOneRow = 64;  // entries
  constexpr int64_t kSeveralRows = 4;
  constexpr int64_t kFewestOfSeveral = 16;
  constexpr int64_t kMostOfSeveral = 256;
  const int64_t mean = ceil_div(loads, std::max<int64_t>(rows, 1));
  if (plan.thread_nonzeros > 0) {
    return plan.thread_nonzeros / plan.a_vector;
  }
  if (plan.thread.rows == RowCount::one) {
    return std::clamp<int64_t>(mean, 1, kMostOfOneRow / plan.a_vector);
  }
  return std::clamp<int64_t>(kSeveralRows * mean, kFewestOfSeveral / plan.a_vector,
                             kMostOfSeveral / plan.a_vector);
}

// How many consecutive parts have whole rows together; 0: rows go on in any part.
int whole_parts(const KernelPlan& plan) {
  if (part_division(plan).ends == RowEnds::whole) {
    return 1;
  }
  if (part_level(plan) == PartLevel::group && plan.warp.ends == RowEnds::whole) {
    return groups(plan);
  }
  return plan.block.ends == RowEnds::whole ? block_parts(plan) : 0;
}

void begin_part(int64_t load, PlanWork& work) {
  work.part_begins.push_back(static_cast<uint32_t>(load));
}

// As many rows as have at most `most` loads, but at least one.
void take_whole_rows(const FilledRows& rows, int64_t most, PlanWork& work) {
  int64_t begin = 0;
  for (int64_t row = 0; row < rows.count(); ++row) {
    if (row == 0 || rows.end(row) - begin > most) {
      begin = rows.begin(row);
      begin_part(begin, work);
    }
  }
}

// Pieces of rows, of `wanted` loads where that is a must, else of equally many, about these. Says
// for each row with which part it begins.
std::vector<int64_t> cut_rows(const FilledRows& rows, const KernelPlan& plan, int64_t wanted,
                              PlanWork& work) {
  const int64_t together = whole_parts(plan);
  std::vector<int64_t> first_parts;
  for (int64_t row = 0; row < rows.count(); ++row) {
    const int64_t length = rows.end(row) - rows.begin(row);
    int64_t pieces = ceil_div(length, wanted);
    int64_t size = plan.thread_nonzeros > 0 ? wanted : ceil_div(length, pieces);
    if (together > 0 && pieces > together) {
      size = ceil_div(length, together);
    }
    pieces = ceil_div(length, size);
    if (together > 0) {
      const int64_t free = together - std::ssize(work.part_begins) % together;
      for (int64_t i = 0; free < pieces && i < free; ++i) {
        begin_part(rows.begin(row), work);
      }
    }
    first_parts.push_back(std::ssize(work.part_begins));
    for (int64_t i = 0; i < pieces; ++i) {
      begin_part(rows.begin(row) + i * size, work);
    }
  }
  return first_parts;
}

void share_evenly(int64_t share, PlanWork& work) {
  for (int64_t begin = 0; begin < work.loads; begin += share) {
    begin_part(begin, work);
  }
}

std::vector<RowStarts> row_starts(std::span<const int64_t> first_items, int64_t items) {
  std::vector<RowStarts> starts(static_cast<size_t>(ceil_div(items, 32)));
  for (const int64_t item : first_items) {
    starts[static_cast<size_t>(item / 32)].bits |= 1u << (item % 32);
  }
  for (size_t i = 1; i < starts.size(); ++i) {
    const RowStarts& previous = starts[i - 1];
    starts[i].before = previous.before + static_cast<unsigned>(std::popcount(previous.bits));
  }
  return starts;
}

// Rows of which not all items are in one block, of `block_items`.
void find_block_rows(std::span<const int64_t> first_items, int64_t items, int64_t block_items,
                     PlanWork& work) {
  for (size_t row = 0; row < first_items.size(); ++row) {
    const int64_t end = row + 1 < first_items.size() ? first_items[row + 1] : items;
    const int64_t first = first_items[row] / block_items;
    const int64_t last = (end - 1) / block_items;
    if (last > first) {
      work.block_rows.push_back({.row = work.rows[row],
                                 .first_block = static_cast<unsigned>(first),
                                 .blocks = static_cast<unsigned>(last - first + 1)});
    }
  }
}

int64_t longest_part(const PlanWork& work) {
  int64_t longest = 0;
  for (size_t part = 0; part + 1 < work.part_begins.size(); ++part) {
    const int64_t end = std::min<int64_t>(work.part_begins[part + 1], work.loads);
    longest = std::max(longest, end - work.part_begins[part]);
  }
  return longest;
}

}  // namespace

PlanWork plan_work(const EncodedRows& encoding, const KernelPlan& plan) {
  const std::optional<std::string> problem = why_invalid(plan);
  require(!problem.has_value(), "plan: {}", problem.value_or(""));
  require(encoding.layout.interleave == 1 && encoding.grid.panels() == 1 &&
              (encoding.layout.positions == PositionCode::u16 ||
               encoding.layout.positions == PositionCode::u32),
          "plans take groups apart, in one panel of u16 or u32 positions, not '{}'",
          to_text(encoding.layout));
  require(encoding.layout.vector % plan.a_vector == 0,
          "plan: a-vector={} does not divide the {} entries of a unit", plan.a_vector,
          encoding.layout.vector);
  constexpr int64_t kMostLoads = int64_t{1} << 31;
  const int64_t unit_loads = encoding.layout.vector / plan.a_vector;
  PlanWork work;
  work.loads = encoding.starts.back() * unit_loads;
  require(work.loads < kMostLoads, "plan: {} loads of A, and fewer than {} are expected",
          work.loads, kMostLoads);

  const FilledRows rows = find_rows(encoding, unit_loads, work);
  const Division division = part_division(plan);
  const int64_t group_loads = wanted_group_loads(plan, work.loads, rows.count());
  const int64_t wanted = group_loads * part_groups(plan);
  std::vector<int64_t> first_items(rows.begins.begin(), rows.begins.end() - 1);  // loads
  if (part_is_row(plan)) {
    work.part_begins.assign(rows.begins.begin(), rows.begins.end() - 1);
  } else if (division.rows == RowCount::one) {
    first_items = cut_rows(rows, plan, wanted, work);
  } else if (division.ends == RowEnds::whole) {
    take_whole_rows(rows, wanted, work);
  } else {
    share_evenly(wanted, work);
  }
  work.parts = std::ssize(work.part_begins);
  work.part_blocks = ceil_div(work.parts, block_parts(plan));
  const bool even = division == Division{RowCount::several, RowEnds::split};
  begin_part(even ? work.parts * wanted : work.loads, work);

  const bool of_loads = plan.thread.rows == RowCount::several;
  const int64_t items = of_loads ? work.loads : work.parts;
  if (!part_is_row(plan)) {
    work.starts = row_starts(first_items, items);
  }
  if (plan.block.ends == RowEnds::split) {
    find_block_rows(first_items, items, of_loads ? wanted : block_parts(plan), work);
  }
  const bool fixed = even || (plan.thread_nonzeros > 0 && longest_part(work) <= wanted);
  work.group_loads = fixed ? static_cast<int>(group_loads) : 0;
  return work;
}

PlanFacts plan_facts(const Layout& layout, DType dtype, const PlanWork& work) {
  return {.dtype = dtype,
          .positions = layout.positions,
          .shared_rows = layout.shared_rows,
          .group_loads = work.group_loads,
          .part_begin = OffsetFunction::of(work.part_begins),
          .row = OffsetFunction::of(work.rows)};
}

}  // namespace sparsellm::general_sparse
