#pragma once

#include <cstdint>

// The kernels of gemm() on the CPU, and of single rows of dense weights. Their files are compiled
// for instruction sets that not every CPU has, and the linker may take any file's copy of an inline
// function for the whole program: this header has none, and neither do those that the files include
// besides it.
namespace sparsellm::gemm_cpu_kernels {

// A sum is taken in blocks of kBlockColumns columns, which begin at multiples of it. In a block
// there are kLanes partial sums, chains of fused multiply-adds from 0 on: column c belongs to
// number c % kLanes. They are added up by halves (l and l + 8, then + 4, + 2, + 1), and the sums of
// the blocks one after the other. So the order goes by a column's number alone: it is the same by
// every kernel, with any number of tokens and threads, and leaving out a column whose x is 0, which
// these kernels do not do, would change no more than the sign of a zero, for finite weights.
inline constexpr int64_t kBlockColumns = 1024;
inline constexpr int kLanes = 16;

// sums [tokens][sums_stride] = x [tokens, columns] times w [rows, columns], transposed; strides in
// elements. The blocks of a row of x are `x_block` elements apart. Part of a product if `add`:
// columns that begin at a block, after those whose sums are there already.
struct Product {
  const void* w;
  int64_t w_stride;
  int64_t rows;
  const float* x;
  int64_t x_stride;
  int64_t x_block;
  int64_t tokens;
  int64_t columns;
  float* sums;
  int64_t sums_stride;
  bool add;
};
using Multiply = void (*)(const Product&);

// sums [count]: rows[k] of w times one token x [columns]; w as in a Product.
struct ListedProduct {
  const void* w;
  int64_t w_stride;
  const int32_t* rows;
  int64_t count;
  const float* x;
  int64_t columns;
  float* sums;
};
using MultiplyListed = void (*)(const ListedProduct&);

// sums [columns]: factors[k] times rows[k] of w, k = 0, ..., count - 1, for each column one chain
// of fused multiply-adds from 0 on. The list goes on with `next` more rows, which are prefetched.
struct WeightedRows {
  const void* w;
  int64_t w_stride;
  const int32_t* rows;
  const float* factors;
  int64_t count;
  int64_t next;
  int64_t columns;
  float* sums;
};
using SumListed = void (*)(const WeightedRows&);

struct DenseKernels {
  Multiply multiply;
  MultiplyListed multiply_listed;
  SumListed sum_listed;
};

struct Kernels {  // by the dtype of w
  DenseKernels f32;
  DenseKernels f16;
  DenseKernels bf16;
};

extern const Kernels kPortableKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;  // F, BW, DQ and VL

}  // namespace sparsellm::gemm_cpu_kernels
