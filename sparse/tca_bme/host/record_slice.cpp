#include <algorithm>
#include <vector>

#include "sparse/tca_bme/format/record_parts.h"
#include "sparse/tca_bme/host/record_runs.h"

namespace sparsellm::tca_bme {
namespace {

// Of `layout`.
int64_t nonzeros_in(const RecordRun& run, const RecordLayout& layout) {
  const int32_t header_bytes = layout.header_bytes();
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
std::optional<EncodedWeight> join_like(std::span<const RecordRun> runs, const EncodedWeight& like,
                                       const RecordLayout& layout, int64_t rows, int64_t columns) {
  if (records_in(runs) == 0 && layout != record_layout_for(0, 0, goal_of(like))) {
    return std::nullopt;
  }
  int64_t nonzeros = 0;
  for (const RecordRun& run : runs) {
    nonzeros += nonzeros_in(run, layout);
  }
  return join_runs(runs, layout_part(layout),
                   {.format = like.format,
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
  return join_like({&run, 1}, e, parts.layout, rows.count, e.columns);
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
  return join_like(runs, e, parts.layout, e.rows, columns.count);
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
  return join_like(runs, like, layout, rows, like.columns);
}

}  // namespace sparsellm::tca_bme
