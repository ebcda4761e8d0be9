#include "kernels/base/comm_stream.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/base/error.h"

namespace sparsellm {

CommStream CommStream::of(const Tensor& tensor, int64_t begin, int64_t bytes) {
  constexpr int64_t kVector = 16;
  constexpr int64_t kWord = 4;
  const int64_t size = size_of(tensor.dtype());
  CommStream stream;
  if (bytes == 0) {
    return stream;
  }
  stream.row = static_cast<std::byte*>(tensor.raw());
  stream.one_row = tensor.contiguous();
  stream.bytes = static_cast<uint32_t>(bytes);
  stream.element = static_cast<uint32_t>(std::min(size, kWord));
  if (stream.one_row) {
    stream.row += begin;
  } else {
    const int64_t row_bytes = tensor.row_size() * size;
    require(row_bytes <= std::numeric_limits<int32_t>::max(),
            "ranks cannot exchange rows of {} bytes", row_bytes);
    stream.stride = tensor.row_stride() * size;
    stream.row += begin / row_bytes * stream.stride;
    stream.row_bytes = static_cast<uint32_t>(row_bytes);
    stream.skip = static_cast<uint32_t>(begin % row_bytes);
  }
  const auto address = static_cast<int64_t>(std::bit_cast<uintptr_t>(stream.row));
  require(address % stream.element == 0, "ranks cannot exchange {} that are not aligned",
          name_of(tensor.dtype()));
  stream.vectors =
      address % kVector == 0 && stream.stride % kVector == 0 && stream.row_bytes % kVector == 0;
  return stream;
}

}  // namespace sparsellm
