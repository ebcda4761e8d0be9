#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "kernels/base/comm_kernels.h"
#include "kernels/base/cuda_context.h"
#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"

namespace sparsellm {

// Sums of two ranks that overlap with the kernels that are enqueued after they begin: copy engines
// send, which takes no multiprocessor from a product, and whoever needs a sum adds it up. Both
// ranks copy their part into a slot of the other's memory (CommLayout::deferred), in turn.
//
// A slot is written again kDeferredSlots sums later. By then the other rank has read it, since at
// most kMost sums are under way: who begins sum n + 4 has ended n + 2, for which the other had
// begun it, after it had ended n.
class DeferredCopies {
 public:
  static constexpr int kMost = 2;

  DeferredCopies(const CommWorld& world, const CudaContext& cuda);
  ~DeferredCopies();  // waits for its copies
  DeferredCopies(const DeferredCopies&) = delete;
  DeferredCopies& operator=(const DeferredCopies&) = delete;

  // Whether a sum of y can be deferred: it lies in one piece of whole vectors, and fits.
  static bool takes(const CommWorld& world, const Tensor& y);

  // y stays as it is until its sum ends, which happens in the order in which they begin.
  void begin(const Tensor& y, const ExecContext& ctx);
  void end(const Tensor& y, const ExecContext& ctx);

 private:
  struct Queue;

  CommWorld world_;
  std::unique_ptr<Queue> queue_;
  int64_t begun_ = 0;
  int64_t ended_ = 0;
  std::array<const void*, kMost> under_way_{};
};

}  // namespace sparsellm
