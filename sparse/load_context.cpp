#include "sparse/load_context.h"

#include "kernels/base/mapped_file.h"
#include "sparse/encoded_weight.h"

namespace sparsellm {

int64_t WeightPart::rows() const { return slice ? slice->rows.count : weight->rows; }

int64_t WeightPart::columns() const { return slice ? slice->columns.count : weight->columns; }

const MappedFile* WeightPart::file_of(std::span<const std::byte> bytes) const {
  return file != nullptr && is_inside(bytes, file->bytes()) ? file : nullptr;
}

}  // namespace sparsellm
