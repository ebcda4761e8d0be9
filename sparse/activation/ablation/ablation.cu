#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/base/workspace.h"
#include "sparse/activation/ablation/ablation.h"
#include "sparse/activation/ablation/ablation_kernels.cuh"

namespace sparsellm {
namespace {

using namespace mlp_ablation;

unsigned blocks_of(int64_t count, int64_t of_block) {
  const int64_t blocks = (count + of_block - 1) / of_block;
  require(blocks <= INT32_MAX, "{} rows are too many", count);
  return static_cast<unsigned>(blocks);
}

int64_t ranges_of(int64_t neurons) { return (neurons + kRange - 1) / kRange; }

void check_operands(const AblatedMlpOperands& mlp) {
  constexpr int64_t kMostRanges = 65535;  // of a grid along y
  const auto has_shape = [](const Tensor& x, int64_t rows, int64_t columns) {
    return x.size(0) == rows && x.size(1) == columns;
  };
  const int64_t inputs = mlp.x.size(1);
  const int64_t outputs = mlp.y.size(1);
  const int64_t neurons = mlp.gate.size(0);
  require(has_shape(mlp.x, 1, inputs) && has_shape(mlp.y, 1, outputs) &&
              has_shape(mlp.gate, neurons, inputs) && has_shape(mlp.up, neurons, inputs) &&
              has_shape(mlp.down, neurons, outputs) && has_shape(mlp.active, 1, neurons),
          "the operands of an MLP of {} neurons for one token do not fit together", neurons);
  require(std::max(inputs, outputs) <= kMaxRowElements && ranges_of(neurons) <= kMostRanges,
          "an MLP of {} neurons, {} inputs and {} outputs is too large", neurons, inputs, outputs);
}

class CudaAblatedMlp : public AblatedMlp {
 public:
  CudaAblatedMlp(MlpAblation variant, const ExecContext& ctx)
      : variant_(variant), side_(ctx.cuda->side_queue(nullptr)), fence_(*ctx.cuda) {}

  void enqueue(const AblatedMlpOperands& mlp, const ExecContext& ctx) override {
    check_operands(mlp);
    visit_activation(mlp.x.dtype(), [&]<class T>(T) { enqueue_as<T>(mlp, ctx); });
  }

 private:
  // With two queues launches are ordinary: an overlapping one may start before a kernel of the
  // other queue has ended.
  LaunchShape shape_of(dim3 blocks) const {
    return {.blocks = blocks,
            .threads = kThreads,
            .shared_bytes = 0,
            .pdl = variant_ != MlpAblation::concurrent};
  }

  template <class T>
  void enqueue_as(const AblatedMlpOperands& mlp, const ExecContext& ctx) {
    auto scratch = ctx.workspace.scope();
    const int64_t neurons = mlp.gate.size(0);
    auto* const h = scratch.tensor(DType::f32, {neurons}).template data<float>();
    const FirstLayer<T> first{.x = matrix_rows<T>(mlp.x),
                              .gate = matrix_rows<T>(mlp.gate),
                              .up = matrix_rows<T>(mlp.up),
                              .active = mlp.active.data<uint8_t>(),
                              .threshold = mlp.threshold,
                              .neurons = neurons,
                              .columns = static_cast<int>(mlp.x.size(1))};
    const LaunchShape warp_per_row = shape_of(blocks_of(neurons, kWarps));
    switch (variant_) {
      case MlpAblation::fused_kernels:
        launch(ctx, fused_rows_kernel<false, T>, warp_per_row, first, h);
        break;
      case MlpAblation::both:
      case MlpAblation::atomics:
        launch(ctx, fused_rows_kernel<true, T>, warp_per_row, first, h);
        break;
      default:
        multiply_apart(first, warp_per_row, h, ctx);
    }
    add_up<T>(mlp, h, ctx);
  }

  template <class T>
  void multiply_apart(const FirstLayer<T>& first, const LaunchShape& warp_per_row, float* h,
                      const ExecContext& ctx) {
    auto scratch = ctx.workspace.scope();
    const int64_t neurons = first.neurons;
    auto* const gates = scratch.tensor(DType::f32, {neurons}).template data<float>();
    auto* const ups = scratch.tensor(DType::f32, {neurons}).template data<float>();
    const float* const known_gates = skips_actual_zeros(variant_) ? gates : nullptr;
    ExecContext of_up = ctx;
    if (variant_ == MlpAblation::concurrent) {
      of_up.queue = &side_;
      fence_.set(ctx.queue);
      fence_.wait(&side_);
    }
    launch(ctx, gate_rows_kernel<T>, warp_per_row, first, gates);
    launch(of_up, up_rows_kernel<T>, warp_per_row, first, known_gates, ups);
    if (variant_ == MlpAblation::concurrent) {
      fence_.set(&side_);
      fence_.wait(ctx.queue);
    }
    launch(ctx, product_kernel, shape_of(blocks_of(neurons, kThreads)), gates, ups, h, neurons);
  }

  template <class T>
  void add_up(const AblatedMlpOperands& mlp, const float* h, const ExecContext& ctx) const {
    auto scratch = ctx.workspace.scope();
    const int64_t neurons = mlp.down.size(0);
    const auto columns = static_cast<int>(mlp.down.size(1));
    const DownLayer<T> layer{
        .down = matrix_rows<T>(mlp.down),
        .h = h,
        .active = skips_actual_zeros(variant_) ? nullptr : mlp.active.data<uint8_t>(),
        .neurons = neurons,
        .columns = columns};
    const int64_t ranges = variant_ == MlpAblation::atomics ? 1 : ranges_of(neurons);
    auto* const sums = scratch.tensor(DType::f32, {ranges, columns}).template data<float>();
    const LaunchShape by_columns = shape_of(blocks_of(columns, kThreads));
    if (variant_ == MlpAblation::atomics) {
      launch(ctx, clear_kernel, by_columns, sums, columns);
      launch(ctx, down_atomics_kernel<T>, shape_of(blocks_of(neurons, kWarps)), layer, sums);
    } else {
      const dim3 blocks(blocks_of(columns, kTileElements), static_cast<unsigned>(ranges));
      launch(ctx, down_ranges_kernel<T>, shape_of(blocks), layer, sums);
    }
    launch(ctx, add_up_kernel<T>, by_columns, sums, static_cast<int>(ranges), columns,
           static_cast<T*>(mlp.y.raw()));
  }

  MlpAblation variant_;
  CudaQueue side_;
  StreamFence fence_;
};

}  // namespace

std::unique_ptr<AblatedMlp> ablate_mlp(MlpAblation variant, const ExecContext& ctx) {
  require(ctx.cuda != nullptr, "an MLP is taken apart on CUDA alone, not on {}",
          to_string(ctx.device));
  return std::make_unique<CudaAblatedMlp>(variant, ctx);
}

int64_t ablated_mlp_workspace_bytes(int64_t neurons, int64_t outputs) {
  const int64_t of_neurons = Workspace::tensor_bytes(DType::f32, {neurons});
  return 3 * of_neurons + Workspace::tensor_bytes(DType::f32, {ranges_of(neurons), outputs});
}

}  // namespace sparsellm
