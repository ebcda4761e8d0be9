#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"
#include "sparse/weight_matrix.h"

// The ablation of the kernel for few tokens (sparse/tca_bme/cuda/record_matmul.cuh): the kernel as
// it is, or with a stage erased or replaced, to see what the stage costs (Xia et al., Flash-LLM,
// VLDB 2024, section 6). One variant decodes as the paper of the format does, from bitmaps in its
// order (Fan et al., SpInfer, EuroSys 2025, sections 4.2 and 4.3.3); what the paper's own stages
// cost is in its section 5, table 1 and figure 12.
//
// For measurements only: a library of its own (sparsellm_tca_bme_ablation), which nothing that runs
// models includes or links.
namespace sparsellm::tca_bme {

// What is taken away, or put in its place. What decodes nothing computes no product.
enum class Ablation : uint8_t {
  none,
  paper_decode,  // SpInfer's two-phase decoding with popcounts, of bitmaps in its own order
  no_decode,     // what was fetched goes into the multiplication as it is
  stream_only,   // records are fetched, and nothing else
  one_stage,     // each warp has one record in flight
};

inline constexpr int64_t kMaxAblationTokens = 16;

// A product with its operands.
class AblatedProduct {
 public:
  virtual ~AblatedProduct() = default;
  virtual std::string configuration() const = 0;  // of the kernel
  // y = x * W^T with that copy of W. Can be captured in a CUDA graph.
  virtual void enqueue(int64_t copy, const ExecContext& ctx) = 0;
};

// Copies of a weight in tca_bme.
class AblatedWeight {
 public:
  virtual ~AblatedWeight() = default;
  // Of one copy, that a product reads. Those of paper_decode are known once one has been bound;
  // before, this is what `none` reads.
  virtual int64_t bytes(Ablation ablation) const = 0;
  // For up to kMaxAblationTokens rows of x, f16, with the configuration that the engine chooses for
  // this many tokens in this context or, where it would expand the weight, the kernel's best guess.
  // The product needs the workspace of matmul(), and refers to this object. The first paper_decode
  // encodes the copies in the paper's order, and synchronises. Throws Error, also for a device that
  // the kernel does not run on.
  virtual std::unique_ptr<AblatedProduct> bind(Ablation ablation, const Tensor& x, const Tensor& y,
                                               ExecContext& ctx) = 0;
};

// `copies`: at least one, all of them w [out, in], f16 and contiguous, in tca_bme on a CUDA device.
// w and the copies outlive the result. Throws Error for another dtype or format, and in a CPU-only
// build.
std::unique_ptr<AblatedWeight> ablate(const Tensor& w, std::vector<const WeightMatrix*> copies);

}  // namespace sparsellm::tca_bme
