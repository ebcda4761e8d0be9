#include <algorithm>
#include <cstdint>
#include <optional>

#include "kernels/base/launch.cuh"
#include "kernels/base/pdl.cuh"
#include "kernels/device/cuda_types.cuh"
#include "sparse/activation/cuda/fused_parameters.cuh"
#include "sparse/activation/cuda/fused_votes.cuh"
#include "sparse/activation/sign_predictor_device.h"

// The prediction of the fused MLP (fused_votes.cuh) by itself, in one launch.
namespace sparsellm {
namespace {

using fused::FusedLayout;
using fused::FusedParameters;
using fused::FusedShape;

template <class T>
__global__ void __launch_bounds__(fused::kThreads, 1)
    predict_few_kernel(const __grid_constant__ FusedParameters p, uint8_t* active, int64_t stride) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ fused::FusedShared shared;
  const fused::FusedBlock block(p.shape);
  const fused::FusedVotes<T> votes(p, block, shared, memory);
  if (threadIdx.x == 0) {
    barrier_init(shared_address(&shared.signs_there), 1);
    barriers_ready();
  }
  votes.begin();
  __syncthreads();
  launch_dependents();
  wait_on_dependencies();
  votes.read_x();
  __syncthreads();
  votes.count();
  __syncthreads();
  votes.write(active, stride);
#endif
}

// Of a block for each multiprocessor.
FusedShape shape_of(const Tensor& x, const SignWords& w, int multiprocessors) {
  FusedShape shape{.tokens = static_cast<int>(x.size(0)),
                   .in = static_cast<int>(w.columns),
                   .neurons = static_cast<int>(w.rows()),
                   .kinds = 1,
                   .tiles = 1};
  shape.out = multiprocessors / 2 * shape.columns();
  return shape;
}

bool is_aligned(const Tensor& rows) {
  constexpr uintptr_t kBytes = 16;
  const auto stride = static_cast<uintptr_t>(rows.row_stride() * size_of(rows.dtype()));
  return (reinterpret_cast<uintptr_t>(rows.raw()) | (rows.size(0) > 1 ? stride : 0)) % kBytes == 0;
}

}  // namespace

bool predict_few_cuda(const Tensor& x, const SignWords& w, const SignPrediction& how, Tensor active,
                      ExecContext& ctx) {
  constexpr int kHopper = 90;
  constexpr int64_t kColumns = 128;
  const CudaContext::State& cuda = cuda_state(ctx);
  if (cuda.compute_capability != kHopper || x.size(0) == 0 || x.size(0) > fused::kMostTokens ||
      w.columns == 0 || w.columns % kColumns != 0 ||
      w.columns > int64_t{fused::kMostSquares} * kColumns || w.rows() == 0 ||
      w.rows() > fused::kMostNeurons || !w.nonzero.empty() || !w.signs.contiguous() ||
      !is_aligned(w.signs) || !is_aligned(x)) {
    return false;
  }
  const FusedShape shape = shape_of(x, w, cuda.multiprocessors);
  const std::optional<FusedLayout> layout = fused::vote_layout(shape);
  if (!layout) {
    return false;
  }
  FusedParameters parameters{};
  parameters.shape = shape;
  parameters.at = *layout;
  parameters.x = x.raw();
  parameters.x_stride = x.row_stride();
  parameters.signs = w.signs.data<uint32_t>();
  parameters.per_vector = 8.f / static_cast<float>(shape.in);
  parameters.alpha = how.alpha;
  parameters.weighted = how.votes == Votes::weighted;
  parameters.counts_bits = !parameters.weighted && shape.tokens <= fused::kMostCountedTokens;
  visit_activation(x.dtype(), [&]<class T>(T) {
    check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(&predict_few_kernel<T>),
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, layout->bytes));
    launch(ctx, &predict_few_kernel<T>,
           {.blocks = static_cast<unsigned>(shape.blocks()),
            .threads = fused::kThreads,
            .shared_bytes = static_cast<size_t>(layout->bytes),
            .pdl = true},
           parameters, active.data<uint8_t>(), active.row_stride());
  });
  return true;
}

}  // namespace sparsellm
