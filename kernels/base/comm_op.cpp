#include "kernels/base/comm_op.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

std::string_view name_of(CommKind kind) {
  switch (kind) {
    case CommKind::all_reduce_sum:
      return "all_reduce_sum";
    case CommKind::all_gather:
      return "all_gather";
    case CommKind::broadcast:
      return "broadcast";
    case CommKind::broadcast_bytes:
      return "broadcast_bytes";
    case CommKind::gather_bytes:
      return "gather_bytes";
  }
  return "?";
}

bool has_root(CommKind kind) {
  return kind == CommKind::broadcast || kind == CommKind::broadcast_bytes;
}

}  // namespace

std::string to_string(const CommOp& op) {
  std::string text(name_of(op.kind));
  if (has_root(op.kind)) {
    text += fmt::format(" from rank {}", op.root);
  }
  if (op.rows > 0) {
    text += fmt::format(" of {} rows of {} bytes", op.rows, op.row_bytes);
  }
  return text;
}

CommOp op_of(CommKind kind, const Tensor& tensor, int root) {
  return {.kind = kind,
          .root = root,
          .rows = tensor.size(0),
          .row_bytes = tensor.row_size() * size_of(tensor.dtype())};
}

void copy_rows(const Tensor& from, const Tensor& to) {
  const int64_t from_stride = from.row_stride() * size_of(from.dtype());
  const int64_t to_stride = to.row_stride() * size_of(to.dtype());
  const auto row_bytes = static_cast<size_t>(to.row_size() * size_of(to.dtype()));
  if (from.raw() == to.raw() || row_bytes == 0) {
    return;
  }
  for (int64_t row = 0; row < to.size(0); ++row) {
    std::memcpy(static_cast<std::byte*>(to.raw()) + row * to_stride,
                static_cast<const std::byte*>(from.raw()) + row * from_stride, row_bytes);
  }
}

std::string name_of_rank(int rank, std::string_view device) {
  return fmt::format("rank {} ({})", rank, device);
}

std::string seconds_text(std::chrono::milliseconds time) {
  return fmt::format("{:g} s", static_cast<double>(time.count()) / 1000.0);
}

std::string reason_text(std::string_view name, std::string_view reason) noexcept {
  try {
    std::string text = std::string(name) + ": ";
    text += reason.substr(0, kMaxReasonBytes - std::min(kMaxReasonBytes, text.size()));
    text.resize(std::min(text.size(), kMaxReasonBytes));
    std::replace_if(
        text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
    return text;
  } catch (...) {
    return "out of memory";  // short enough to need none
  }
}

void sum_in_rank_order(std::span<const float* const> parts, int64_t count, float* sum) {
  constexpr int64_t kBlock = 512;  // a buffer of its own, so that loops need not expect overlaps
  std::array<float, kBlock> block;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t length = std::min(kBlock, count - begin);
    std::copy_n(parts[0] + begin, length, block.begin());
    for (const float* part : parts.subspan(1)) {
      for (int64_t i = 0; i < length; ++i) {
        block[static_cast<size_t>(i)] += part[begin + i];
      }
    }
    std::copy_n(block.begin(), length, sum + begin);
  }
}

}  // namespace sparsellm
