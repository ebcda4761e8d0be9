#include "sparse/general_sparse/format/parts.h"

#include "kernels/base/error.h"

namespace sparsellm::general_sparse {

Layout read_layout(const EncodedWeight& e) {
  const EncodedPart& part = e.part(kLayout);
  require(part.dtype == DType::u8, "general_sparse: the part layout is {}, not U8",
          safetensors_name(part.dtype));
  const std::span<const char> text = part.values<char>();
  return layout_from({text.data(), text.size()});
}

}  // namespace sparsellm::general_sparse
