#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>

#include "kernels/activation.h"
#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"
#include "kernels/base/tune_cache.h"
#include "sparse/activation/ablation/ablation.h"
#include "sparse/activation/sign_predictor.h"
#include "tools/bench/mlp_weights.h"

namespace sparsellm {

// An MLP, whole or a part of it.
enum class MlpPart : uint8_t {
  dense,      // the engine's dense MLP, whose kernels are tuned
  predictor,  // predict_active()
  rows,       // gated_rows() or plain_rows() of given active neurons
  down,       // down_rows() of a given h
  ops,        // the last three after each other
  fused,      // fused_mlp()
  ablated,    // predict_active(), and what --ablation takes apart
};
inline constexpr std::array kMlpParts{MlpPart::dense, MlpPart::predictor, MlpPart::rows,
                                      MlpPart::down,  MlpPart::ops,       MlpPart::fused};
std::string_view name_of(MlpPart part);
// Whether y comes out that x went in for: what the dense MLP is compared with.
inline bool is_whole(MlpPart part) {
  return part == MlpPart::ops || part == MlpPart::fused || part == MlpPart::ablated;
}

// What is measured: a part, of MlpPart::ablated one of its variants.
struct MlpSubject {
  MlpPart part = MlpPart::dense;
  MlpAblation variant = MlpAblation::neither;

  std::string_view name() const {
    return part == MlpPart::ablated ? name_of(variant) : name_of(part);
  }
};

// What a part is made from. Tensors are on the context's device, of as many tokens as there are at
// most, and outlive it, as the context and the cache do.
struct MlpInput {
  MlpShape shape;
  DType weights = DType::f16;
  uint64_t seed = 0;
  Activation activation;
  SignPrediction prediction;
  Tensor x;             // [tokens, hidden]
  Tensor given_active;  // u8 [tokens, neurons]
  Tensor given_h;       // [tokens, neurons]
  // Results of their own.
  Tensor active;       // of the predictor
  Tensor h;            // of rows
  Tensor y;            // of all others
  int64_t copies = 1;  // of all weights that the part reads
  ExecContext& ctx;
  TuneCache& tune_cache;
};

// A part with copies of its weights.
class MlpContender {
 public:
  virtual ~MlpContender() = default;
  virtual int64_t copies() const = 0;
  // Before enqueue() of as many tokens, which may then be captured in a graph.
  virtual void tune(int64_t tokens) = 0;
  // Of the first tokens; on the CPU it returns when the result is there.
  virtual void enqueue(int64_t tokens, int64_t copy, Launches launches) = 0;
};

// Throws Error, for want of memory too.
std::unique_ptr<MlpContender> make_mlp_contender(MlpSubject subject, const MlpInput& input);

}  // namespace sparsellm
