#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"
#include "kernels/base/tune_cache.h"

namespace sparsellm {

// A kernel with its operands: enqueue(copy, launches) computes y = x * W^T with that copy of W. The
// first call for a copy may prepare something and synchronise; all others can be captured in a CUDA
// graph. On the CPU it returns when y is there.
class BoundKernel {
 public:
  virtual ~BoundKernel() = default;
  // What such launches run; empty if there is but one.
  virtual std::string algorithm(Launches launches) const = 0;
  // What it may change x by, as WeightMatrix::input_rounding().
  virtual double input_rounding([[maybe_unused]] Launches launches) const { return 0.0; }
  virtual void enqueue(int64_t copy, Launches launches) = 0;  // throws Error
};

// A way to multiply by a weight that takes part in a benchmark: a format of the engine or a
// library, with as many copies of the weight, all equal, as it takes to find none of them in the
// cache.
class Contender {
 public:
  virtual ~Contender() = default;
  virtual int64_t copies() const = 0;
  virtual int64_t bytes() const = 0;  // of one copy that a product reads
  // Whether the two kinds of launches differ.
  virtual bool overlaps_launches() const { return false; }
  // How far a right result may be from the reference, in units of the tolerance, which is for sums
  // in f32 (tools/bench/verify_product.h).
  virtual double error_limit() const { return 1.0; }
  // The algorithms that can be tried for x [tokens, in] and y [tokens, out], at least one. They
  // refer to this object. Throws Error.
  virtual std::vector<std::unique_ptr<BoundKernel>> bind(const Tensor& x, const Tensor& y) = 0;
};

// What a contender is made from.
struct ContenderInput {
  const Tensor& weight;  // [out, in] on the context's device, contiguous, with zeros; outlives the
                         // contender
  int64_t rotation_bytes = 0;  // that the copies have together, at least
  int64_t max_tokens = 0;      // that bind() is called with
  ExecContext& ctx;            // outlives the contender, as the cache does
  TuneCache& tune_cache;
  std::string layout = {};  // that a format is told to encode in; empty: by its rule
};

}  // namespace sparsellm
