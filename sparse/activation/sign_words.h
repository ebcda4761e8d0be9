#pragma once

#include <atomic>
#include <cstdint>

#include "kernels/base/buffer.h"
#include "kernels/base/exec.h"
#include "kernels/base/parallel.h"
#include "kernels/base/tensor.h"
#include "sparse/weight_matrix.h"

namespace sparsellm {

// The signs of a weight W [rows, columns], packed as SparseInfer has them (Shin et al., DATE 2025,
// section IV-B), without its loss of the last columns % 32:
//   signs    u32 [rows, ceil(columns / 32)]: bit i of word j is set if W[row, 32 * j + i] is
//            negative
//   nonzero  u32, the same shape: the bit is set if the element is not zero. Empty if none is: a
//            pruned weight has zeros, of either sign, which vote for neither side.
// Bits beyond the last column are 0. A view: it owns nothing.
struct SignWords {
  int64_t columns = 0;
  Tensor signs;
  Tensor nonzero;

  int64_t rows() const { return signs.size(0); }
  int64_t bytes() const { return signs.bytes() + nonzero.bytes(); }  // that a prediction reads
  // Of some of the rows: a range of neurons.
  SignWords slice(Range range) const;
};

inline int64_t sign_word_count(int64_t columns) { return (columns + 31) / 32; }

// With their memory.
struct OwnedSignWords {
  OwnedTensor signs;
  OwnedTensor nonzero;  // empty if no element is zero
  int64_t columns = 0;

  SignWords view() const { return {columns, signs.view, nonzero.view}; }
  int64_t bytes() const { return view().bytes(); }
};

// Packs a weight on the CPU, some rows at a time, as they are loaded.
class SignPacker {
 public:
  SignPacker(int64_t rows, int64_t columns);

  // Rows [first_row, first_row + w.size(0)); w [some rows, columns], f16, bf16 or f32, on the CPU,
  // on all threads. Each row once; rows of different calls may be packed at the same time.
  void pack(const Tensor& w, int64_t first_row, ThreadPool& threads);

  // When all rows are packed; an Error if some are missing.
  OwnedSignWords finish() &&;

 private:
  OwnedSignWords words_;
  std::atomic<int64_t> packed_rows_ = 0;
  std::atomic<bool> has_zeros_ = false;
};

// A whole weight on the CPU.
OwnedSignWords pack_sign_words(const Tensor& w, ThreadPool& threads);

// A whole weight on the device of ctx, where its words will lie too. w [rows, columns], f16, bf16
// or f32; its rows may be strided, as those of a half of a joined weight are. On CUDA it
// synchronises, and while it runs it takes the memory of `nonzero` in any case.
OwnedSignWords pack_sign_words(const Tensor& w, ExecContext& ctx);

}  // namespace sparsellm
