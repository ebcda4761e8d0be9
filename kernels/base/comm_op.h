#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kernels/base/tensor.h"

namespace sparsellm {

// What the implementations of Communicator share.

enum class CommKind : uint8_t {
  all_reduce_sum = 1,
  all_gather,
  broadcast,
  broadcast_bytes,
  gather_bytes,
};

// What all ranks have to agree on when they meet for an operation.
struct CommOp {
  CommKind kind = CommKind::all_reduce_sum;
  int root = 0;
  int64_t rows = 0;  // of the whole tensor; 0 where ranks may have different sizes
  int64_t row_bytes = 0;

  friend bool operator==(const CommOp&, const CommOp&) = default;
};

CommOp op_of(CommKind kind, const Tensor& tensor, int root = 0);

// "all_reduce_sum of 2 rows of 64 bytes", "broadcast_bytes from rank 1".
std::string to_string(const CommOp& op);

// Of tensors on the CPU with as many rows of as many bytes; nothing where both are the same memory.
void copy_rows(const Tensor& from, const Tensor& to);

// "rank 1 (cuda:1)"
std::string name_of_rank(int rank, std::string_view device);

// "1.5 s", "60 s"
std::string seconds_text(std::chrono::milliseconds time);

// Reasons of aborts are one line, and no longer than this.
inline constexpr size_t kMaxReasonBytes = 1500;
// "NAME: REASON", without control characters; never throws, but may be shortened.
std::string reason_text(std::string_view name, std::string_view reason) noexcept;

// sum = ((parts[0] + parts[1]) + parts[2]) + ..., of `count` elements each; `sum` may be one of the
// parts.
void sum_in_rank_order(std::span<const float* const> parts, int64_t count, float* sum);

}  // namespace sparsellm
