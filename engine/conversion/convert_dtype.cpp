#include "engine/conversion/convert_dtype.h"

#include <algorithm>
#include <atomic>

#include "kernels/base/convert.h"
#include "kernels/base/error.h"

namespace sparsellm {
namespace {

constexpr int64_t kPiece = 1 << 16;  // values

[[noreturn]] void refuse_overflows(int64_t overflows, DType to, const std::string& what) {
  fail("{} has {} {} too large for {}{}", what, overflows, overflows == 1 ? "value" : "values",
       name_of(to), to == DType::f16 ? ", which ends at 65504: pass --dtype bf16" : "");
}

}  // namespace

std::optional<DType> dtype_to_convert(const StoredTensor& tensor, DType to,
                                      const std::string& what) {
  const bool floating = tensor.dtype.starts_with('F') || tensor.dtype == "BF16";
  const DType from = floating ? tensor.float_dtype(what) : to;
  return from != to ? std::optional(from) : std::nullopt;
}

void require_in_range(DType from, std::span<const std::byte> bytes, DType to,
                      const std::string& what, ThreadPool& threads) {
  std::atomic<int64_t> overflows = 0;
  threads.parallel_for(std::ssize(bytes) / size_of(from), kPiece, [&](int64_t begin, int64_t end) {
    overflows += count_overflows(from, bytes.data() + begin * size_of(from), to, end - begin);
  });
  if (overflows > 0) {
    refuse_overflows(overflows, to, what);
  }
}

Buffer convert_values(DType from, std::span<const std::byte> bytes, DType to,
                      const std::string& what, ThreadPool& threads) {
  const int64_t count = std::ssize(bytes) / size_of(from);
  Buffer converted(Device{}, count * size_of(to), what);
  auto* const destination = static_cast<std::byte*>(converted.data());
  std::atomic<int64_t> overflows = 0;
  threads.parallel_for(count, kPiece, [&](int64_t begin, int64_t end) {
    const std::byte* const source = bytes.data() + begin * size_of(from);
    if (convert(from, source, to, destination + begin * size_of(to), end - begin)) {
      overflows += count_overflows(from, source, to, end - begin);
    }
  });
  if (overflows > 0) {
    refuse_overflows(overflows, to, what);
  }
  return converted;
}

}  // namespace sparsellm
