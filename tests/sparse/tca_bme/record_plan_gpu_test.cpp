// How products of tca_bme records are computed: the choice, its text, and what it falls back to.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/cuda_context.h"
#include "kernels/base/tune_cache.h"
#include "kernels/base/workspace.h"
#include "sparse/expand_matmul.h"
#include "sparse/tca_bme/cuda/record_plan.h"
#include "sparse/tca_bme/cuda/record_workspace.h"
#include "sparse/tca_bme/tca_bme.h"
#include "tests/sparse/tca_bme/gpu_record_test.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using tca_bme::plan_from;
using tca_bme::RecordPlan;
using tca_bme::to_text;

// A matrix of records half full on a device as large as an H100.
RecordMatrix matrix_on_hopper(int64_t rows, int64_t columns) {
  return {.records = nullptr,
          .starts = nullptr,
          .rows = rows,
          .columns = columns,
          .chunks = 4,
          .pair = false,
          .largest_record = 4864,
          .common_record = 4864,
          .clusters = {132, 66, 33, 16, 8}};
}

TEST(RecordPlan, TextSaysWhatItWas) {
  for (const auto& [rows, columns] : {Shape{4096, 4096}, Shape{28672, 7168}, Shape{100, 72}}) {
    const RecordMatrix matrix = matrix_on_hopper(rows, columns);
    for (int64_t tokens : {1, 16, 32, 64, 256, 2048}) {
      std::vector<RecordPlan> plans;
      for (const Expansion& expansion : overlapped_expansions(rows, columns, tokens)) {
        plans.emplace_back(expansion);
      }
      plans.emplace_back(single_piece_expansion(rows, columns));
      for (const RecordMatmulConfig& config : record_matmul_candidates(matrix, tokens)) {
        plans.emplace_back(config);
      }
      for (const RecordWgmmaConfig& config : record_wgmma_candidates(matrix, tokens)) {
        plans.emplace_back(config);
      }
      for (const RecordPlan& plan : plans) {
        const std::string text = to_text(plan);
        const std::optional<RecordPlan> back = plan_from(text, matrix, tokens);
        ASSERT_TRUE(back.has_value()) << text;
        EXPECT_TRUE(*back == plan) << text;
      }
    }
  }
}

TEST(RecordPlan, RefusesWhatIsNoChoice) {
  const RecordMatrix matrix = matrix_on_hopper(4096, 4096);
  for (const char* text :
       {"", "wgmma", "wgmma ", "wgmma tiles of 48 tokens, split-K 1, 1 row blocks",
        "wgmma multistage", "decode multistage", "decode", "expand",
        "expand 512, one after the other", "expand 2048, one after the other ", "expand 1",
        "expand -512", "expand 512 ", "expand 512x", "dense"}) {
    EXPECT_FALSE(plan_from(text, matrix, 256).has_value()) << text;
  }
  for (const RecordWgmmaConfig& config : record_wgmma_candidates(matrix, 256)) {
    const std::string text = to_text(RecordPlan(config));
    EXPECT_TRUE(text.starts_with("wgmma ")) << text;
    EXPECT_FALSE(plan_from(text + " ", matrix, 256).has_value()) << text;
    EXPECT_FALSE(plan_from("decode " + record_wgmma_name(config), matrix, 256).has_value());
    RecordMatrix before = matrix;
    before.clusters = {};
    EXPECT_FALSE(plan_from(text, before, 256).has_value()) << text;
    EXPECT_FALSE(plan_from(text, matrix_on_hopper(0, 4096), 256).has_value()) << text;
  }
}

// Shapes of rows that are short, long, and too long for a piece.
TEST(RecordPlan, PiecesFitTheWorkspaceThatTheyAskFor) {
  for (const auto& [rows, columns] : {Shape{1, 1}, Shape{700, 516}, Shape{20480, 5120},
                                      Shape{5120, 20480}, Shape{12288, 49152}, Shape{3, 1 << 24}}) {
    const auto bytes_of = [columns = columns](int64_t piece_rows) {
      return Workspace::tensor_bytes(DType::f16, {piece_rows, columns});
    };
    const int64_t overlapped = expand_matmul_workspace_bytes(rows, columns);
    for (int64_t tokens : {1, 64, 300, 1024, 2048, 5000}) {
      for (int64_t piece_rows : expand_piece_choices(rows, columns, tokens)) {
        EXPECT_LE(2 * bytes_of(piece_rows) + CudaContext::kWorkspaceBytes, overlapped);
      }
    }
    const int64_t single = expand_single_piece_rows(rows, columns);
    EXPECT_GE(single, 1);
    EXPECT_LE(single, rows);
    EXPECT_EQ(bytes_of(single), expand_single_piece_workspace_bytes(rows, columns));
    EXPECT_TRUE(single == 1 || bytes_of(single) <= 16 << 20) << rows << " x " << columns;
    EXPECT_LT(bytes_of(single), overlapped);
  }
}

class GpuRecordPlan : public GpuWarpgroupTest {
 protected:
  struct Loaded {
    std::unique_ptr<WeightMatrix> weight;
    DeviceMatrix matrix;  // the same
  };
  Loaded load(const Tensor& w) {
    EncodedWeight encoded = tca_bme::encode_records(w, LayoutFor::speed, cpu.threads);
    DeviceMatrix matrix(encoded, clusters);
    return {.weight = tca_bme_format().load(std::move(encoded), load_context()),
            .matrix = std::move(matrix)};
  }

  std::string plan_of(const WeightMatrix& loaded, DType y, int64_t tokens) {
    return loaded.plan_text(y, tokens, *exec);
  }

  CudaProductOperands operands_of(const Tensor& x, const Tensor& y) {
    return {.x = x.raw(),
            .x_stride = x.row_stride(),
            .y = y.raw(),
            .y_stride = y.row_stride(),
            .tokens = x.size(0),
            .dtype = x.dtype()};
  }
};
INSTANTIATE_TEST_SUITE_P(Gpu, GpuRecordPlan, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(GpuRecordPlan, WarpgroupsAreForManyTokens) {
  const Loaded loaded = load(weight({700, 520}, 0.4).view);
  for (int64_t tokens : {1, 15, 16}) {
    EXPECT_TRUE(plan_of(*loaded.weight, GetParam(), tokens).starts_with("decode "));
  }
  EXPECT_TRUE(plan_of(*loaded.weight, GetParam(), 1025).starts_with("expand "));
  for (int64_t tokens : {17, 32, 33, 64, 65, 128, 300, 1024}) {
    const std::vector<RecordWgmmaConfig> configs =
        record_wgmma_candidates(loaded.matrix.matrix, tokens);
    ASSERT_FALSE(configs.empty());
    EXPECT_EQ(plan_of(*loaded.weight, GetParam(), tokens), to_text(RecordPlan(configs.front())));
  }
  EXPECT_TRUE(plan_of(*loaded.weight, DType::f32, 64).starts_with("expand "));
  const Loaded odd = load(weight({700, 516}, 0.4).view);
  EXPECT_TRUE(plan_of(*odd.weight, GetParam(), 64).starts_with("decode "));
  EXPECT_TRUE(plan_of(*odd.weight, GetParam(), 300).starts_with("expand "));
  exec->sums = Sums::batch_invariant;
  for (int64_t tokens : {1, 64, 300}) {
    EXPECT_TRUE(plan_of(*loaded.weight, GetParam(), tokens).starts_with("decode "));
  }
}

// By the bits of the kernel that the plan names.
TEST_P(GpuRecordPlan, AProductIsComputedAsPlanned) {
  const Shape shape{700, 520};
  const OwnedTensor w = weight(shape, 0.4);
  const Loaded loaded = load(w.view);
  for (int64_t tokens : {33, 40, 300}) {
    const GuardedTensor x = numbers(tokens, shape.columns);
    const GuardedTensor y(GetParam(), {tokens, shape.rows}, Layout::strided, kGpu);
    const GuardedTensor expected(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
    const std::vector<RecordWgmmaConfig> configs =
        record_wgmma_candidates(loaded.matrix.matrix, tokens);
    ASSERT_FALSE(configs.empty());
    loaded.weight->matmul(x.view(), y.view(), {}, *exec);
    auto scratch = exec->workspace.scope();
    const int64_t words =
        record_wgmma_workspace_bytes(loaded.matrix.matrix, configs.front(), tokens) / 4;
    CudaProductOperands operands = operands_of(x.view(), expected.view());
    operands.workspace = scratch.tensor(DType::f32, {words}).raw();
    record_wgmma_cuda(loaded.matrix.matrix, operands, configs.front(), *exec);
    gpu->cuda.synchronize();
    EXPECT_TRUE(same_bits(y.view(), expected.view())) << tokens << " tokens";
    EXPECT_TRUE(all_close(y.view(), expected_of(x.view(), w.view), kTolerance));
    EXPECT_TRUE(y.guards_intact());
  }
}

// Rows of x at odd places, before tuning and after it.
TEST_P(GpuRecordPlan, UnalignedRowsAreNotForWarpgroups) {
  constexpr int64_t kBuckets[] = {64, 512};
  const Shape shape{700, 520};
  const OwnedTensor w = weight(shape, 0.4);
  const Loaded loaded = load(w.view);
  const GuardedTensor x = numbers(300, shape.columns, Layout::strided);
  const Expected all = expected_of(x.view(), w.view);
  for (bool tuned : {false, true}) {
    if (tuned) {
      const WeightMatrix* const alike = loaded.weight.get();
      TuneCache cache;
      alike->tune({.alike = {&alike, 1}, .epilogue = {}, .y = GetParam(), .tokens = kBuckets},
                  cache, *exec);
    }
    for (int64_t tokens : {17, 40, 300}) {
      const Tensor rows = x.view().rows(0, tokens);
      const GuardedTensor y(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
      ASSERT_FALSE(record_wgmma_takes(loaded.matrix.matrix, operands_of(rows, y.view())));
      loaded.weight->matmul(rows, y.view(), {}, *exec);
      gpu->cuda.synchronize();
      EXPECT_TRUE(all_close(y.view(), first_rows(all, tokens, shape.rows), kTolerance))
          << tokens << " tokens";
      EXPECT_TRUE(y.guards_intact());
    }
  }
}

// The rule chooses what it would choose if there were no warpgroups.
TEST_P(GpuRecordPlan, UnalignedRowsAreDecodedOrExpanded) {
  const Shape shape{700, 520};
  const Loaded loaded = load(weight(shape, 0.4).view);
  const GuardedTensor x = numbers(300, shape.columns, Layout::strided);
  for (int64_t tokens : {40, 300}) {
    const Tensor rows = x.view().rows(0, tokens);
    const GuardedTensor y(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
    const GuardedTensor expected(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
    loaded.weight->matmul(rows, y.view(), {}, *exec);
    if (tokens == 40) {
      const RecordMatrix& matrix = loaded.matrix.matrix;
      auto scratch = exec->workspace.scope();
      const int64_t words = record_matmul_workspace_bytes(matrix, tokens) / 4 + 1;
      CudaProductOperands operands = operands_of(rows, expected.view());
      operands.workspace = scratch.tensor(DType::f32, {words}).raw();
      record_matmul_cuda(matrix, operands, record_matmul_candidates(matrix, tokens).front(), *exec);
    } else {
      expand_matmul({.weight = *loaded.weight,
                     .piece_rows = expand_single_piece_rows(shape.rows, shape.columns),
                     .overlapped = false},
                    rows, expected.view(), {}, *exec);
    }
    gpu->cuda.synchronize();
    EXPECT_TRUE(same_bits(y.view(), expected.view())) << tokens << " tokens";
  }
}

TEST_P(GpuRecordPlan, NoTokensAreNothingToDo) {
  const Loaded loaded = load(weight({700, 520}, 0.4).view);
  const GuardedTensor x(GetParam(), {64, 520}, Layout::contiguous, kGpu);
  const GuardedTensor y(GetParam(), {64, 700}, Layout::contiguous, kGpu);
  EXPECT_NO_THROW(loaded.weight->matmul(x.view().rows(0, 0), y.view().rows(0, 0), {}, *exec));
  gpu->cuda.synchronize();
  EXPECT_TRUE(y.guards_intact());
}

}  // namespace
}  // namespace sparsellm
