#include "sparse/tca_bme/format/record_sizes.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace sparsellm::tca_bme {
namespace {

// Of as many records, one that is larger than the common size costs little. Those of a matrix whose
// zeros are spread evenly differ by less than an eighth.
constexpr int64_t kRecordsForALarger = 64;
constexpr uint32_t kMuchLarger = 8;
// By less, 64 rows differ from their mean where zeros are spread evenly.
constexpr int64_t kEvenPercent = 2;

constexpr int64_t kAlignment = 128;  // of records in shared memory

// The first run takes as many items as it may have within the limit, and so on.
bool fill_runs(std::span<const uint32_t> starts, int most, uint64_t limit,
               std::vector<int>& begins) {
  const int items = static_cast<int>(std::ssize(starts)) - 1;
  const int parts = static_cast<int>(std::ssize(begins)) - 1;
  int at = 0;
  for (int part = 0; part < parts; ++part) {
    begins[static_cast<size_t>(part)] = at;
    const int last = std::min(at + most, items - (parts - 1 - part));  // one for each run to come
    const auto first = starts.begin() + at;
    const auto end = std::upper_bound(first, starts.begin() + last + 1, *first + limit,
                                      [](uint64_t a, uint32_t b) { return a < b; });
    const int taken = static_cast<int>(end - first) - 1;
    if (taken == 0) {
      return false;
    }
    at += taken;
  }
  begins.back() = at;
  return at == items;
}

}  // namespace

RecordSizes record_sizes(std::span<const uint32_t> starts, const RecordGrid& grid) {
  require(std::ssize(starts) == grid.count() + 1, "{} starts of {} records", starts.size(),
          grid.count());
  RecordSizes sizes;
  if (grid.count() == 0) {
    return sizes;
  }
  std::vector<uint32_t> units(static_cast<size_t>(grid.count()));
  for (size_t r = 0; r < units.size(); ++r) {
    units[r] = starts[r + 1] - starts[r];
  }
  const auto common = units.end() - 1 - grid.count() / kRecordsForALarger;
  std::nth_element(units.begin(), common, units.end());
  const uint32_t largest = *std::max_element(common, units.end());
  sizes.largest = largest * kRecordAlignment;
  sizes.common =
      (largest - *common <= *common / kMuchLarger ? largest : *common) * kRecordAlignment;

  std::vector<uint32_t> blocks(static_cast<size_t>(grid.row_blocks) + 1);
  for (size_t block = 0; block < blocks.size(); ++block) {
    blocks[block] = starts[block * static_cast<size_t>(grid.columns)];
  }
  int64_t heaviest = 0;
  for (size_t block = 0; block + 1 < blocks.size(); ++block) {
    heaviest = std::max<int64_t>(heaviest, blocks[block + 1] - blocks[block]);
  }
  const int64_t total = blocks.back() - blocks.front();
  if (heaviest * grid.row_blocks * 100 > total * (100 + kEvenPercent)) {
    sizes.block_starts = std::move(blocks);
  }
  return sizes;
}

int64_t record_room(int64_t bytes) {
  return ceil_div(bytes + kPastValues, kAlignment) * kAlignment;
}

Ring ring_for(uint32_t largest, uint32_t common, int64_t room, int most) {
  const int64_t common_room = record_room(std::min(common, largest));
  const int64_t large = record_room(largest);
  room = room / kAlignment * kAlignment;
  if (room < large) {
    return {};
  }
  const int64_t count = std::min<int64_t>(room / common_room, most);
  return {.count = static_cast<int>(count),
          .bytes = static_cast<int>(std::min(room, large + (count - 1) * common_room)),
          .wide = large > common_room};
}

std::vector<int> balanced_runs(std::span<const uint32_t> starts, int parts, int most) {
  const int64_t items = std::ssize(starts) - 1;
  require(parts >= 1 && items >= parts && items <= int64_t{parts} * most,
          "{} items in {} runs of 1 to {}", items, parts, most);
  std::vector<int> begins(static_cast<size_t>(parts) + 1);
  const uint64_t total = starts.back() - starts.front();
  uint64_t too_little = total / static_cast<uint64_t>(parts);
  too_little -= too_little != 0 ? 1 : 0;
  uint64_t enough = total;
  // Far less than what a record block weighs: the limit need not be exact.
  const uint64_t exact = too_little / 256;
  while (enough - too_little > exact + 1) {
    const uint64_t limit = too_little + (enough - too_little) / 2;
    (fill_runs(starts, most, limit, begins) ? enough : too_little) = limit;
  }
  require(fill_runs(starts, most, enough, begins), "{} items do not fill {} runs of 1 to {}", items,
          parts, most);
  return begins;
}

}  // namespace sparsellm::tca_bme
