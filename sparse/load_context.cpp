#include "sparse/load_context.h"

#include "kernels/base/mapped_file.h"

namespace sparsellm {

const MappedFile* WeightPart::file_of(std::span<const std::byte> bytes) const {
  return file != nullptr && is_inside(bytes, file->bytes()) ? file : nullptr;
}

}  // namespace sparsellm
