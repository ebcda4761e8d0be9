#include <algorithm>
#include <vector>

#include "sparse/tca_bme/format/record_parts.h"

namespace sparsellm::tca_bme {
namespace {

// Consecutive records of an encoding.
struct RecordRun {
  const RecordParts* from = nullptr;
  int64_t first = 0;
  int64_t count = 0;
};

int64_t nonzeros_in(const RecordRun& run) {
  const int32_t header_bytes = run.from->layout.header_bytes();
  int64_t nonzeros = 0;
  for (int64_t r = run.first; r < run.first + run.count; ++r) {
    const std::span<const std::byte> record = run.from->record(r);
    const int64_t end = std::ssize(record);
    int32_t record_nonzeros = 0;
    for (int64_t byte = header_bytes; byte < end; byte += 2) {  // the padding is 0
      record_nonzeros += (load_from<uint16_t>(record.data() + byte) & 0x7fff) != 0 ? 1 : 0;
    }
    nonzeros += record_nonzeros;
  }
  return nonzeros;
}

// A weight like `like` but of this size, made of these records; nothing if encode_records() would
// give no records another layout, or if there are more than starts hold.
std::optional<EncodedWeight> join_runs(std::span<const RecordRun> runs, const EncodedWeight& like,
                                       const RecordLayout& layout, int64_t rows, int64_t columns) {
  int64_t records = 0;
  int64_t bytes = 0;
  int64_t nonzeros = 0;
  for (const RecordRun& run : runs) {
    records += run.count;
    bytes += std::ssize(run.from->run(run.first, run.count));
    nonzeros += nonzeros_in(run);
  }
  if ((records == 0 && layout != record_layout_for(0, 0, goal_of(like))) ||
      bytes / kRecordAlignment > int64_t{UINT32_MAX}) {
    return std::nullopt;
  }
  NewRecords joined(layout, records);
  joined.starts.values[0] = 0;
  auto next_start = joined.starts.values.begin() + 1;
  for (const RecordRun& run : runs) {
    const auto first = run.from->starts.begin() + run.first;
    const uint32_t shift = *(next_start - 1) - *first;  // modulo 2^32
    next_start = std::transform(first + 1, first + run.count + 1, next_start,
                                [&](uint32_t start) { return start + shift; });
  }
  joined.allocate_records();
  auto next_byte = joined.records.values.begin();
  for (const RecordRun& run : runs) {
    const std::span<const std::byte> run_bytes = run.from->run(run.first, run.count);
    next_byte = std::copy(run_bytes.begin(), run_bytes.end(), next_byte);
  }
  return joined.finish({.format = like.format,
                        .version = like.version,
                        .dtype = like.dtype,
                        .rows = rows,
                        .columns = columns,
                        .nonzeros = nonzeros,
                        .parts = {}});
}

// Whether a range begins at a multiple of `step`, and ends at one or at the end of all.
bool at_borders(Range range, int64_t size, int64_t step) {
  const int64_t end = range.begin + range.count;
  return range.begin % step == 0 && (end % step == 0 || end == size);
}

}  // namespace

std::optional<EncodedWeight> slice_rows_records(const EncodedWeight& e, Range rows) {
  if (!at_borders(rows, e.rows, kRecordRows)) {
    return std::nullopt;
  }
  const RecordParts parts(e);
  const RecordGrid sliced = record_grid(rows.count, e.columns, parts.layout);
  const RecordRun run{.from = &parts,
                      .first = parts.grid.index(rows.begin / kRecordRows, 0),
                      .count = sliced.count()};
  return join_runs({&run, 1}, e, parts.layout, rows.count, e.columns);
}

std::optional<EncodedWeight> slice_columns_records(const EncodedWeight& e, Range columns) {
  const RecordParts parts(e);
  if (!at_borders(columns, e.columns, parts.layout.columns())) {
    return std::nullopt;
  }
  const RecordGrid sliced = record_grid(e.rows, columns.count, parts.layout);
  const int64_t first_column = columns.begin / parts.layout.columns();
  std::vector<RecordRun> runs;
  for (int64_t block = 0; block < sliced.row_blocks && sliced.columns > 0; ++block) {
    runs.push_back(
        {.from = &parts, .first = parts.grid.index(block, first_column), .count = sliced.columns});
  }
  return join_runs(runs, e, parts.layout, e.rows, columns.count);
}

std::optional<EncodedWeight> concat_rows_records(std::span<const EncodedWeight* const> parts) {
  std::vector<RecordParts> joined;
  joined.reserve(parts.size());  // runs point to them
  std::vector<RecordRun> runs;
  int64_t rows = 0;
  for (const EncodedWeight* part : parts) {
    if (part->rows == 0) {
      continue;  // its layout says nothing
    }
    const RecordParts& added = joined.emplace_back(*part);
    if (rows % kRecordRows != 0 || added.layout != joined.front().layout) {
      return std::nullopt;
    }
    runs.push_back({.from = &added, .first = 0, .count = added.grid.count()});
    rows += part->rows;
  }
  const EncodedWeight& like = *parts.front();
  const RecordLayout layout = joined.empty() ? read_record_layout(like) : joined.front().layout;
  return join_runs(runs, like, layout, rows, like.columns);
}

}  // namespace sparsellm::tca_bme
