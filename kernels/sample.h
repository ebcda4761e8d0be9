#pragma once

#include <cstdint>

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"

namespace sparsellm {

// How a row of logits becomes a token; the fields mean what engine/sampler.h says, and have the
// ranges that validate() requires there. Penalties and biases come before
// (kernels/adjust_logits.h).
struct SampleRow {
  int32_t slot = -1;         // where in `tokens` the result goes; -1: the row is passed over
  float temperature = 0.0f;  // 0: greedy
  int32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  int32_t use_banned = 0;  // 1: the ids of `banned` are never chosen
  uint64_t seed = 0;
  int64_t index = 0;  // of the token in its request

  friend bool operator==(const SampleRow&, const SampleRow&) = default;
};
inline constexpr int64_t kSampleRowWords = sizeof(SampleRow) / sizeof(int32_t);

// For a row with a NaN or an infinity, or with every id banned or forbidden.
inline constexpr int32_t kNoToken = -1;

inline constexpr int64_t kMaxSampleVocabulary = int64_t{1} << 22;  // sums of weights fit 64 bits

// Chooses one token for each row; on CUDA only, where it enqueues one kernel and uses no workspace.
//   logits  f32 [n, vocabulary], contiguous; vocabulary 1 to kMaxSampleVocabulary. A token whose
//           logit is the NaN kForbiddenLogit (kernels/adjust_logits.h) is never chosen.
//   rows    i32 [n, kSampleRowWords]: n SampleRows, contiguous and 8-byte aligned; no slot twice
//   banned  i32 [m], or empty: a short list; ids outside the vocabulary are passed over
//   tokens  i32 [slots]: the row's token, or kNoToken; what is no row's slot stays as it is.
//           It overlaps no other operand.
// The result is that of sample_token() in engine/sampler.h; weights are whole multiples of 2^-40 of
// the largest, so that their sums do not depend on an order. (A draw within 2^-40 of a border
// between two tokens may fall on the other side.) What lies in `rows` is not checked. Throws Error
// for operands that are not as above, and on the CPU device.
void sample(const Tensor& logits, const Tensor& rows, const Tensor& banned, Tensor tokens,
            ExecContext& ctx);

}  // namespace sparsellm
