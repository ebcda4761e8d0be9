#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "sparse/ablation/ablated_weight.h"
#include "tools/bench/contender.h"

namespace sparsellm {

// A weight multiplied by its format's kernel for few tokens, whole or ablated.
class AblationContender : public Contender {
 public:
  virtual std::span<const AblationVariant> variants() const = 0;  // first the kernel as it is
  // Of what is bound from now on; bytes() is what that reads.
  virtual void choose(size_t variant) = 0;
};

// What make_ablation_contender() takes: "tca_bme" first.
std::span<const std::string_view> ablation_formats();

// On CUDA, for f16 and up to kMaxAblationTokens. Throws Error, also for another format, and for a
// device that the kernel does not run on.
std::unique_ptr<AblationContender> make_ablation_contender(std::string_view format,
                                                           const ContenderInput& input);

}  // namespace sparsellm
