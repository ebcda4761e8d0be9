#pragma once

#include <algorithm>

#include "sparse/record_upload.h"
#include "sparse/tca_bme/format/record_parts.h"
#include "sparse/tca_bme/quantized/quantized_parts.h"

namespace sparsellm::tca_bme {

using RecordUploads = RecordUploadsOf<RecordChecker>;
using QuantizedUploads = RecordUploadsOf<QuantizedChecker>;

// Whether their records, one part's after the other's, are those of the joined weight: not if
// layouts differ, or the rows of a part but the last are no multiple of 64.
template <class Checker>
bool can_be_joined(const RecordUploadsOf<Checker>& parts) {
  const auto layout = parts.front()->checker().layout();
  return records_follow_each_other(parts, kRecordRows) &&
         std::ranges::all_of(parts,
                             [&](const auto& part) { return part->checker().layout() == layout; });
}

}  // namespace sparsellm::tca_bme
