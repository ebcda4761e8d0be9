#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"
#include "kernels/epilogue.h"

namespace sparsellm {

class TuneCache;  // kernels/base/tune_cache.h

// y [tokens, out] = epilogue(x [tokens, in] * w^T), w [out, in], x in the dtype of the activations,
// y in the same or, for logits, in f32. y must not overlap x; rows of x, w and y may be strided.
// Sums are taken in f32. On CUDA they may be rounded to y's dtype before the bias is added, and are
// before an activation other than relu.
//
// On the CPU w and the bias have any floating dtype. The order of the sums goes by the numbers of
// the columns alone (kernels/cpu/gemm_kernels.h): y has the same bits in any batch, with any number
// of threads and by any instruction set. Takes gemm_workspace_bytes() from the workspace.
//
// On CUDA w has the dtype of x; in > 0; with a bias, which has the same dtype and starts at a
// multiple of 16 bytes, or an activation other than none and relu, y has it too. A NaN may become 0
// under relu. Under Sums::batch_invariant a row of y has the same bits in any batch of x: the first
// call of a shape that was not tuned finds out how, which takes memory, time and a synchronisation,
// and is an Error while a graph is captured. With Launches::overlapping w may be read before what
// was enqueued before has ended: it is not what that writes. (The shape is w's, with the dtypes,
// the epilogue and the alignment of the rows.)
void gemm(const Tensor& x, const Tensor& w, const Epilogue& epilogue, Tensor y, ExecContext& ctx);
int64_t gemm_workspace_bytes(Device device, int64_t in, int64_t tokens);

// The same by a weight that is stored as its transpose, wt [in, out]: y = epilogue(x * wt), with
// all that gemm() takes and says. On the CPU y has the bits of gemm() on the weight itself, and as
// much is taken from the workspace. It is for many tokens there: with 128 it takes a fifth longer
// than gemm(), with 32 more than half. On CUDA the order of the sums may be another than gemm()'s.
void gemm_transposed(const Tensor& x, const Tensor& wt, const Epilogue& epilogue, Tensor y,
                     ExecContext& ctx);

// How a weight is stored.
enum class WeightOrder : uint8_t {
  out_in,  // [out, in]: for gemm()
  in_out,  // [in, out], its transpose: for gemm_transposed()
};

// What gemm() or gemm_transposed() will be called with: as much of it as matters for its speed.
struct GemmTuning {
  std::span<const Tensor> weights;  // as stored, of one shape, dtype and alignment; with values
  WeightOrder order = WeightOrder::out_in;
  Epilogue epilogue;
  DType y = DType::f16;
  std::span<const int64_t> tokens;  // stand for their buckets (kernels/base/token_buckets.h)
};

// Chooses the algorithms of later calls of that function in this context: under Sums::fastest one
// for each bucket of tokens, under Sums::batch_invariant one for all. Takes the choices from
// `cache`, or measures, with random x, the best of them once more by turns, and puts them there
// with their times (saving is the caller's). The weights are read in turn, so that each call of a
// measurement finds its own outside the L2; if there are too few for that, the L2 is flushed. While
// it runs, it takes device memory for x and two y of the largest bucket (for all tokens: an x of
// 2,000 tokens and a y of 1,000); it synchronises. Returns how many choices it measured. On the CPU
// there is no choice.
int64_t tune_gemm(const GemmTuning& what, TuneCache& cache, ExecContext& ctx);

}  // namespace sparsellm
