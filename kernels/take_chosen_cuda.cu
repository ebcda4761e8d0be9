#include "kernels/device/elementwise.cuh"
#include "kernels/take_chosen_device.h"

namespace sparsellm {
namespace {

__global__ void take_chosen_kernel(const int* chosen, int* ids, int tokens) {
  for (int i = elementwise_first(); i < tokens; i += elementwise_step()) {
    if (ids[i] < 0) {
      ids[i] = max(chosen[-1 - ids[i]], 0);
    }
  }
}

}  // namespace

void take_chosen_cuda(const Tensor& chosen, Tensor ids, ExecContext& ctx) {
  launch(ctx, take_chosen_kernel, elementwise_shape(1, ids.size(0)),
         static_cast<const int*>(chosen.raw()), static_cast<int*>(ids.raw()),
         static_cast<int>(ids.size(0)));
}

}  // namespace sparsellm
