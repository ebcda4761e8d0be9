#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"

// The ablation of a format's kernel for few tokens: the kernel as it is, or with a stage erased or
// replaced, to see what the stage costs (Xia et al., Flash-LLM, VLDB 2024, section 6).
//
// For measurements only: a library of its own (sparsellm_ablation), which nothing that runs models
// includes or links.
namespace sparsellm {

inline constexpr int64_t kMaxAblationTokens = 16;

struct AblationVariant {
  std::string_view name;
  bool computes_product = true;  // y is right; else there is nothing to verify it by
};

// A product with its operands.
class AblatedProduct {
 public:
  virtual ~AblatedProduct() = default;
  virtual std::string configuration() const = 0;  // of the kernel
  // y = x * W^T with that copy of W. Can be captured in a CUDA graph.
  virtual void enqueue(int64_t copy, const ExecContext& ctx) = 0;
};

// Copies of a weight on a CUDA device.
class AblatedWeight {
 public:
  virtual ~AblatedWeight() = default;
  virtual std::span<const AblationVariant> variants() const = 0;  // first the kernel as it is
  virtual int64_t copies() const = 0;
  // Of one copy, that a product reads. Those of a variant with an encoding of its own are known
  // once one has been bound; before, this is what the kernel as it is reads.
  virtual int64_t bytes(size_t variant) const = 0;
  // For up to kMaxAblationTokens rows of x, f16. The product needs the workspace of matmul(), and
  // refers to this object. What is encoded in another way is so at its first call, which
  // synchronises. Throws Error, also for a device that the kernel does not run on.
  virtual std::unique_ptr<AblatedProduct> bind(size_t variant, const Tensor& x, const Tensor& y,
                                               ExecContext& ctx) = 0;
};

}  // namespace sparsellm
