#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sparse/ablation/ablated_weight.h"
#include "sparse/weight_matrix.h"

// The ablation of the kernel for few tokens (sparse/tca_bme/cuda/record_matmul.cuh). One variant
// decodes as the paper of the format does, from bitmaps in its order (Fan et al., SpInfer, EuroSys
// 2025, sections 4.2 and 4.3.3); what the paper's own stages cost is in its section 5, table 1 and
// figure 12.
namespace sparsellm::tca_bme {

// What is taken away, or put in its place. What decodes nothing computes no product.
enum class Ablation : uint8_t {
  none,
  paper_decode,  // SpInfer's two-phase decoding with popcounts, of bitmaps in its own order
  no_decode,     // what was fetched goes into the multiplication as it is
  stream_only,   // records are fetched, and nothing else
  one_stage,     // each warp has one record in flight
};

// `copies`: at least one, all of them w [out, in], f16 and contiguous, in tca_bme on a CUDA device.
// w and the copies outlive the result. Products have the configuration that the engine chooses for
// this many tokens in their context or, where it would expand the weight, the kernel's best guess.
// Throws Error for another dtype or format, and in a CPU-only
// build.
std::unique_ptr<AblatedWeight> ablate(const Tensor& w, std::vector<const WeightMatrix*> copies);

}  // namespace sparsellm::tca_bme
