#pragma once

#include <cstdint>
#include <memory>

#include "tools/bench/contender.h"

namespace sparsellm {

// What is taken away from the kernel of tca_bme, or put in its place, to see what it costs (Xia et
// al., Flash-LLM, VLDB 2024, section 6; Fan et al., SpInfer, EuroSys 2025, section 5). What decodes
// nothing computes no product.
enum class Ablation : uint8_t {
  none,
  paper_decode,  // SpInfer's two-phase decoding with popcounts, of bitmaps in its own order
  no_decode,     // what was fetched goes into the multiplication as it is
  stream_only,   // records are fetched, and nothing else
  one_stage,     // each warp has one record in flight
};

inline constexpr int64_t kMaxAblationTokens = 16;

// A weight in tca_bme, multiplied by its kernel for encoded records with the configuration that the
// engine chooses for this many tokens or, where it would expand the weight, the kernel's best
// guess.
class AblationContender : public Contender {
 public:
  // Of what is bound from now on; bytes() is what that reads.
  virtual void choose(Ablation ablation) = 0;
};

// On CUDA, for f16 and up to kMaxAblationTokens. Throws Error, also for a device that the kernel
// does not run on.
std::unique_ptr<AblationContender> make_ablation_contender(const ContenderInput& input);

}  // namespace sparsellm
