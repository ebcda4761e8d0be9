#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "sparse/tca_bme/format/record_arrays.h"

namespace sparsellm::tca_bme {

// Consecutive records of a valid encoding.
struct RecordRun {
  const RecordArrays* from = nullptr;
  int64_t first = 0;
  int64_t count = 0;
};

int64_t records_in(std::span<const RecordRun> runs);

// The encoding with the fields of `header` that is made of these records, and of a part that says
// their layout; nothing if there are more than starts hold.
std::optional<EncodedWeight> join_runs(std::span<const RecordRun> runs, EncodedPart layout,
                                       const EncodedWeight& header);

}  // namespace sparsellm::tca_bme
