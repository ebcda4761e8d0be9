#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "kernels/base/exec.h"
#include "kernels/base/neuron_counters.h"
#include "kernels/base/tensor.h"
#include "kernels/paged_kv.h"

namespace sparsellm {

// The rules that ops share. A broken rule throws Error with the op, the operand, what it is and
// what it should be.

struct Operand {
  std::string_view op;
  std::string_view name;  // of two operands: "x and y"
};

enum class Elements : uint8_t {
  activation,  // f32 on the CPU, f16 or bf16 on CUDA
  floating,    // any floating dtype: weights
  f32,
  i32,
  u8,
  u32,
};

inline constexpr int64_t kAnySize = -1;

// The operand lies on the context's device and has these elements and sizes.
void check_tensor(const Operand& what, const Tensor& x, Elements elements,
                  std::initializer_list<int64_t> sizes, const ExecContext& ctx);

void check_same_dtype(const Operand& what, const Tensor& a, const Tensor& b);

// No element belongs to both. Two views of columns of one matrix may interleave in memory.
void check_disjoint(const Operand& what, const Tensor& a, const Tensor& b);

// The same tensor, or disjoint: an element is written at the place where it was read or elsewhere.
void check_same_or_disjoint(const Operand& what, const Tensor& a, const Tensor& b);

// positions and active, where there are any, belong to h [tokens, neurons].
void check_tally(std::string_view op, const NeuronTally& tally, const Tensor& h,
                 const ExecContext& ctx);

// The pages hold the dtype of the activations; on the CPU they may hold f16.
void check_kv_dtype(const Operand& what, const Tensor& activations, const KvLayer& kv,
                    const ExecContext& ctx);

// The shapes of a step's rows and of the pages that they use; on the CPU device also that every
// number in the tables is in range and that `positions` says the same as `kv_length`. Of the page
// table this is for the pages that the rows reach by their window (AttentionParams).
void check_paged_batch(std::string_view op, const PagedBatch& batch, const KvLayer& kv,
                       int64_t window, const ExecContext& ctx);

}  // namespace sparsellm
