#include "sparse/tca_bme/host/record_runs.h"

#include <algorithm>
#include <utility>

namespace sparsellm::tca_bme {

int64_t records_in(std::span<const RecordRun> runs) {
  int64_t records = 0;
  for (const RecordRun& run : runs) {
    records += run.count;
  }
  return records;
}

std::optional<EncodedWeight> join_runs(std::span<const RecordRun> runs, EncodedPart layout,
                                       const EncodedWeight& header) {
  int64_t bytes = 0;
  for (const RecordRun& run : runs) {
    bytes += std::ssize(run.from->run(run.first, run.count));
  }
  if (bytes > kMaxBytesOfRecords) {
    return std::nullopt;
  }
  NewRecords joined(std::move(layout), records_in(runs));
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
  return joined.finish(header);
}

}  // namespace sparsellm::tca_bme
