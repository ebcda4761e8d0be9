#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "sparse/tca_bme/host/record_runs.h"
#include "sparse/tca_bme/quantized/code_counts.h"
#include "sparse/tca_bme/quantized/quantized_parts.h"
#include "sparse/tca_bme/v1/paper_layout.h"

namespace sparsellm::tca_bme {
namespace {

int64_t nonzeros_in(const RecordRun& run, const QuantizedLayout& layout) {
  int64_t nonzeros = 0;
  for (int64_t r = run.first; r < run.first + run.count; ++r) {
    const std::span<const std::byte> record = run.from->record(r);
    if (layout.dense()) {
      nonzeros +=
          count_dense_nonzeros(layout, record.subspan(static_cast<size_t>(layout.header_bytes())));
      continue;
    }
    for (int32_t byte = 0; byte < layout.mask_bytes(); byte += 8) {
      nonzeros += std::popcount(load_from<uint64_t>(record.data() + byte));
    }
  }
  return nonzeros;
}

bool is_alike(const QuantizedLayout& a, const QuantizedLayout& b) {
  return a.values == b.values && a.group == b.group;
}

// Rows of a matrix of this size, made of these records; of i8 and f8 with these scales. Nothing if
// encode_quantized() would give no records another layout, or if there are more than starts hold.
std::optional<EncodedWeight> join_quantized(std::span<const RecordRun> runs,
                                            const EncodedWeight& like,
                                            const QuantizedLayout& layout,
                                            std::span<const float> scales, int64_t rows,
                                            int64_t columns) {
  if (records_in(runs) == 0 &&
      layout != quantized_layout_in(like.format, layout.values, layout.group, 0, 0)) {
    return std::nullopt;
  }
  int64_t nonzeros = 0;
  for (const RecordRun& run : runs) {
    nonzeros += nonzeros_in(run, layout);
  }
  std::optional<EncodedWeight> e = join_runs(runs, quantized_layout_part(layout),
                                             {.format = like.format,
                                              .version = like.version,
                                              .dtype = like.dtype,
                                              .rows = rows,
                                              .columns = columns,
                                              .nonzeros = nonzeros,
                                              .parts = {}});
  if (e.has_value() && !layout.nibbles()) {
    NewPart<float> made = new_part<float>(kScales, DType::f32, rows);
    std::ranges::copy(scales, made.values.begin());
    e->parts.push_back(std::move(made.part));
  }
  return e;
}

// Some columns of all rows.
QuantizedMatrix columns_of(const QuantizedMatrix& q, Range columns) {
  const bool whole_rows = q.type != ValueType::i4;  // have a scale
  const int64_t group =
      whole_rows || columns.count == 0 ? q.group : group_from(q.group, columns.begin);
  QuantizedMatrix part{.type = q.type,
                       .rows = q.rows,
                       .columns = columns.count,
                       .group = whole_rows ? columns.count : group,
                       .codes = {},
                       .scales = {}};
  part.codes.resize(static_cast<size_t>(part.rows * part.columns));
  part.scales.resize(static_cast<size_t>(part.rows * part.groups()));
  for (int64_t row = 0; row < q.rows; ++row) {
    std::copy_n(q.codes.begin() + row * q.columns + columns.begin, part.columns,
                part.codes.begin() + row * part.columns);
    for (int64_t i = 0; i < part.groups(); ++i) {
      const int64_t from = whole_rows ? 0 : (columns.begin + i * part.group) / q.group;
      part.scales[static_cast<size_t>(row * part.groups() + i)] =
          q.scales[static_cast<size_t>(row * q.groups() + from)];
    }
  }
  return part;
}

}  // namespace

int64_t group_from(int64_t group, int64_t column) {
  int64_t largest = 0;
  for (const int64_t candidate : kValueGroups) {
    if (candidate <= group && column % candidate == 0) {
      largest = candidate;
    }
  }
  require(largest != 0,
          "columns from {} on of a weight in which every {} share a scale are no weight of their "
          "own: they begin at no multiple of {}",
          column, group, kValueGroups[0]);
  return largest;
}

std::optional<EncodedWeight> slice_quantized(const EncodedWeight& e, Axis axis, Range range) {
  const Slice slice = {
      .rows = axis == Axis::rows ? range : Range{.begin = 0, .count = e.rows},
      .columns = axis == Axis::rows ? Range{.begin = 0, .count = e.columns} : range};
  const RecordTiling tiling = quantized_tiling(e.rows, e.columns);
  if (!sparsellm::at_borders(tiling, slice)) {
    return std::nullopt;
  }
  const QuantizedParts parts(e);
  std::vector<RecordRun> runs;
  for (const RecordSlice::Run& run : record_slice(tiling, parts.starts, slice).runs) {
    runs.push_back({.from = &parts, .first = run.first, .count = run.count});
  }
  std::span<const float> scales = parts.scales;
  if (!parts.layout.nibbles()) {
    scales = scales.subspan(static_cast<size_t>(slice.rows.begin),
                            static_cast<size_t>(slice.rows.count));
  }
  return join_quantized(runs, e, parts.layout, scales, slice.rows.count, slice.columns.count);
}

std::optional<EncodedWeight> concat_rows_quantized(std::span<const EncodedWeight* const> parts) {
  if (!are_quantized_alike(parts)) {
    return std::nullopt;
  }
  std::vector<QuantizedParts> joined;
  joined.reserve(parts.size());  // runs point to them
  std::vector<RecordRun> runs;
  std::vector<float> scales;
  int64_t rows = 0;
  for (const EncodedWeight* part : parts) {
    if (part->rows == 0) {
      continue;  // its number of offsets says nothing
    }
    const QuantizedParts& added = joined.emplace_back(*part);
    if (rows % kRecordRows != 0 || added.layout != joined.front().layout) {
      return std::nullopt;
    }
    runs.push_back({.from = &added, .first = 0, .count = added.grid.count()});
    scales.insert(scales.end(), added.scales.begin(), added.scales.end());
    rows += part->rows;
  }
  const EncodedWeight& like = *parts.front();
  const QuantizedLayout layout =
      joined.empty() ? read_quantized_layout(like) : joined.front().layout;
  return join_quantized(runs, like, layout, scales, rows, like.columns);
}

bool are_quantized_alike(std::span<const EncodedWeight* const> parts) {
  return std::ranges::all_of(parts, [&](const EncodedWeight* part) {
    return has_quantized_records(*part) && part->format == parts.front()->format &&
           has_quantized_records(*parts.front()) &&
           is_alike(read_quantized_layout(*part), read_quantized_layout(*parts.front()));
  });
}

EncodedWeight encode_quantized_again(std::span<const EncodedWeight* const> parts,
                                     const Slice& slice, ThreadPool& threads) {
  QuantizedMatrix all;
  int64_t end = 0;  // of the parts so far
  for (const EncodedWeight* part : parts) {
    const int64_t first = std::exchange(end, end + part->rows);
    const int64_t begin = std::clamp(slice.rows.begin, first, end);
    const int64_t count = std::clamp(slice.rows.begin + slice.rows.count, begin, end) - begin;
    QuantizedMatrix rows =
        quantized_rows(QuantizedParts(*part), {.begin = begin - first, .count = count}, threads);
    if (part == parts.front()) {
      all = std::move(rows);
      continue;
    }
    all.rows += rows.rows;
    all.codes.insert(all.codes.end(), rows.codes.begin(), rows.codes.end());
    all.scales.insert(all.scales.end(), rows.scales.begin(), rows.scales.end());
  }
  const EncodedWeight& like = *parts.front();
  return slice.columns.count < all.columns
             ? encode_quantized(columns_of(all, slice.columns), like.format, like.dtype, threads)
             : encode_quantized(all, like.format, like.dtype, threads);
}

}  // namespace sparsellm::tca_bme
