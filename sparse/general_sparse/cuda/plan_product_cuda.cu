#include <bit>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/base/cuda_state.cuh"
#include "kernels/base/kernel_library.h"
#include "kernels/base/launch.cuh"
#include "sparse/copy_buffer.h"
#include "sparse/general_sparse/cuda/device_encoding.h"
#include "sparse/general_sparse/cuda/plan_product_cuda.h"
#include "sparse/general_sparse/plan_source.h"

namespace sparsellm::general_sparse {
namespace {

template <class Value>
Buffer uploaded(const std::vector<Value>& values, const CudaContext& context) {
  return to_device(std::as_bytes(std::span(values)), context.state().device);
}

// Of a dimension of a grid.
unsigned block_count(int64_t blocks, int64_t most, const char* what) {
  require(blocks <= most, "plan: {} thread blocks of {}; a launch takes {}", blocks, what, most);
  return static_cast<unsigned>(blocks);
}

}  // namespace

struct PlanProduct::State {
  PlanMatrix matrix;
  KernelPlan plan;
  std::shared_ptr<const KernelLibrary> library = {};  // none: the kernels are the program's
  PlanKernels kernels = {};
  PlanOperands operands = {};  // all but B and C
  int64_t block_rows = 0;

  Buffer part_table;
  Buffer row_table;
  Buffer starts;
  Buffer empty_rows;
  Buffer block_row_list;

  State(const PlanMatrix& of_matrix, const KernelPlan& of_plan, const PlanWork& work,
        std::span<const std::byte> part_bytes, std::span<const std::byte> row_bytes,
        const CudaContext& context)
      : matrix(of_matrix),
        plan(of_plan),
        block_rows(std::ssize(work.block_rows)),
        part_table(to_device(part_bytes, context.state().device)),
        row_table(to_device(row_bytes, context.state().device)),
        starts(uploaded(work.starts, context)),
        empty_rows(uploaded(work.empty_rows, context)),
        block_row_list(uploaded(work.block_rows, context)) {
    operands.loads = static_cast<unsigned>(work.loads);
    operands.parts = static_cast<unsigned>(work.parts);
    operands.part_blocks = static_cast<unsigned>(work.part_blocks);
    operands.empty_count = static_cast<unsigned>(work.empty_rows.size());
    set_pointers();
  }
  State(const PlanMatrix& of_matrix, const State& other)
      : matrix(of_matrix),
        plan(other.plan),
        library(other.library),
        kernels(other.kernels),
        operands(other.operands),
        block_rows(other.block_rows),
        part_table(copy_of(other.part_table)),
        row_table(copy_of(other.row_table)),
        starts(copy_of(other.starts)),
        empty_rows(copy_of(other.empty_rows)),
        block_row_list(copy_of(other.block_row_list)) {
    set_pointers();
  }

  void set_pointers() {
    operands = {.positions = matrix.positions,
                .values = matrix.values,
                .loads = operands.loads,
                .rows = static_cast<unsigned>(matrix.rows),
                .parts = operands.parts,
                .part_blocks = operands.part_blocks,
                .part_table = part_table.data(),
                .row_table = row_table.data(),
                .starts = static_cast<const RowStarts*>(starts.data()),
                .empty_rows = static_cast<const unsigned*>(empty_rows.data()),
                .block_rows = static_cast<const BlockRow*>(block_row_list.data()),
                .empty_count = operands.empty_count};
  }

  int64_t tiles(int64_t tokens) const { return ceil_div(tokens, int64_t{tile_tokens(plan)}); }
  int64_t sums() const { return int64_t{matrix.shared_rows} * tile_tokens(plan); }  // of a row

  // Whether the addresses of vectors of tokens are aligned, in all rows.
  bool has_vectors(const DenseOperands& o) const {
    const auto aligned = [&](const void* pointer, int64_t stride) {
      const auto bytes = static_cast<uintptr_t>(plan.x_vector * size_of(matrix.dtype));
      return std::bit_cast<uintptr_t>(pointer) % bytes == 0 && stride % plan.x_vector == 0;
    };
    return aligned(o.b, o.b_stride) && (o.c_token != 1 || aligned(o.c, o.c_row));
  }
};

PlanProduct::PlanProduct(const PlanMatrix& matrix, const KernelPlan& plan, const PlanWork& work,
                         const PlanFacts& facts, std::span<const std::byte> code,
                         const CudaContext& context)
    : state_(std::make_unique<State>(matrix, plan, work, facts.part_begin.table(),
                                     facts.row.table(), context)) {
  constexpr KernelNeeds kNeeds{.parameter_bytes = sizeof(PlanOperands)};
  state_->library = std::make_shared<const KernelLibrary>(code, context);
  const KernelLibrary& library = *state_->library;
  state_->kernels = {
      .product = library.kernel(kProductKernel, kNeeds),
      .block_rows = state_->block_rows > 0 ? library.kernel(kBlockRowsKernel, kNeeds) : nullptr};
}

PlanProduct::PlanProduct(const PlanMatrix& matrix, const KernelPlan& plan, const PlanWork& work,
                         const PlanKernels& kernels, const CudaContext& context)
    : state_(std::make_unique<State>(matrix, plan, work, std::as_bytes(std::span(work.part_begins)),
                                     std::as_bytes(std::span(work.rows)), context)) {
  state_->kernels = kernels;
}

PlanProduct::PlanProduct(std::unique_ptr<State> state) : state_(std::move(state)) {}
PlanProduct::~PlanProduct() = default;
PlanProduct::PlanProduct(PlanProduct&&) noexcept = default;
PlanProduct& PlanProduct::operator=(PlanProduct&&) noexcept = default;

PlanProduct PlanProduct::for_copy(const PlanMatrix& matrix) const {
  return PlanProduct(std::make_unique<State>(matrix, *state_));
}

const KernelPlan& PlanProduct::plan() const { return state_->plan; }

void PlanProduct::multiply(const DenseOperands& operands, void* workspace,
                           const ExecContext& ctx) const {
  constexpr int64_t kMostBlocks = std::numeric_limits<int>::max();  // along x
  constexpr int64_t kMostTiles = 65535;                             // along y
  require(operands.tokens <= std::numeric_limits<int>::max(), "plan: a product of {} tokens",
          operands.tokens);
  const State& s = *state_;
  PlanOperands o = s.operands;
  const int64_t zero_blocks =
      ceil_div(o.empty_count * s.sums() / s.plan.x_vector, int64_t{s.plan.threads});
  const unsigned tiles = block_count(s.tiles(operands.tokens), kMostTiles, "tokens");
  const unsigned blocks = block_count(o.part_blocks + zero_blocks, kMostBlocks, "rows");
  o.vectors = s.has_vectors(operands);
  o.b = operands.b;
  o.c = operands.c;
  o.partials = static_cast<float*>(workspace);
  o.b_stride = operands.b_stride;
  o.c_row = operands.c_row;
  o.c_token = operands.c_token;
  o.tokens = static_cast<int>(operands.tokens);
  const auto start = [&](const void* kernel, unsigned along_x) {
    void* parameters[] = {&o, nullptr};
    launch(ctx, kernel,
           {.blocks = dim3(along_x, tiles),
            .threads = dim3(static_cast<unsigned>(s.plan.threads)),
            .pdl = true},
           parameters);
  };
  start(s.kernels.product, blocks);
  start(s.kernels.block_rows, block_count(s.block_rows, kMostBlocks, "split rows"));
}

int64_t PlanProduct::workspace_bytes(int64_t tokens) const {
  const State& s = *state_;
  if (s.block_rows == 0) {
    return 0;
  }
  const int64_t partials = checked_mul(2 * int64_t{s.operands.part_blocks}, s.tiles(tokens),
                                       "partial sums");  // leading and trailing ones
  return checked_mul(partials, s.sums() * int64_t{sizeof(float)}, "partial sums");
}

int64_t PlanProduct::bytes() const {
  const State& s = *state_;
  return s.part_table.bytes() + s.row_table.bytes() + s.starts.bytes() + s.empty_rows.bytes() +
         s.block_row_list.bytes();
}

}  // namespace sparsellm::general_sparse
