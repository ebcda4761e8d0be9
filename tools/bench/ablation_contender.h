#pragma once

#include <memory>

#include "sparse/tca_bme/ablation/ablation.h"
#include "tools/bench/contender.h"

namespace sparsellm {

// A weight in tca_bme, multiplied by its kernel for few tokens, whole or ablated.
class AblationContender : public Contender {
 public:
  // Of what is bound from now on; bytes() is what that reads.
  virtual void choose(tca_bme::Ablation ablation) = 0;
};

// On CUDA, for f16 and up to tca_bme::kMaxAblationTokens. Throws Error, also for a device that the
// kernel does not run on.
std::unique_ptr<AblationContender> make_ablation_contender(const ContenderInput& input);

}  // namespace sparsellm
