// Matrices whose records differ in size: a few much larger than the others, and rows of records
// that differ, by every kernel and configuration, against a product in double.

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/tune_cache.h"
#include "sparse/tca_bme/cuda/record_plan.h"
#include "sparse/tca_bme/tca_bme.h"
#include "tests/sparse/tca_bme/gpu_record_test.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

// Epsilons of sum |w||x|.
constexpr double kTolerance = 8.0;
// One for each layout of records.
constexpr double kDensities[] = {0.45, 0.25, 0.1};
constexpr Shape kShape{1500, 2184};

struct Block {
  int64_t row;  // of blocks of 64 x 128
  int64_t column;
};

class GpuUnevenRecords : public GpuWarpgroupTest {
 protected:
  // A matrix in which these blocks of 64 x 128 elements have no zeros.
  OwnedTensor weight_with(double density, const std::vector<Block>& dense_blocks) {
    OwnedTensor w = weight(kShape, density);
    const OwnedTensor dense = weight(kShape, 1.0);
    for (const Block& block : dense_blocks) {
      const int64_t columns = std::min<int64_t>(128, kShape.columns - block.column * 128);
      for (int64_t row = block.row * 64; row < std::min((block.row + 1) * 64, kShape.rows); ++row) {
        const auto part = [&](const OwnedTensor& of) {
          return of.view.rows(row, 1).columns(block.column * 128, columns);
        };
        std::memcpy(part(w).raw(), part(dense).raw(), static_cast<size_t>(2 * columns));
      }
    }
    return w;
  }

  // Row blocks become ever denser.
  OwnedTensor sloping_weight(double density) {
    OwnedTensor w = weight(kShape, 0.0);
    for (int64_t row = 0; row < kShape.rows; row += 64) {
      const double slope = 0.4 + 1.2 * static_cast<double>(row) / static_cast<double>(kShape.rows);
      const OwnedTensor part = weight(kShape, std::min(density * slope, 1.0));
      const int64_t rows = std::min<int64_t>(64, kShape.rows - row);
      std::memcpy(w.view.rows(row, rows).raw(), part.view.rows(row, rows).raw(),
                  static_cast<size_t>(2 * rows * kShape.columns));
    }
    return w;
  }

  std::vector<OwnedTensor> uneven_weights(double density) {
    std::vector<OwnedTensor> all;
    all.push_back(weight_with(density, {{0, 0}}));
    all.push_back(weight_with(density, {{23, 17}}));
    all.push_back(weight_with(density, {{5, 3}, {5, 4}, {5, 5}, {6, 16}}));
    all.push_back(sloping_weight(density));
    return all;
  }

  void check_all_configs(const OwnedTensor& w, const ClusterCounts& device) {
    const EncodedWeight encoded = tca_bme::encode_records(w.view, LayoutFor::speed, cpu.threads);
    const DeviceMatrix loaded(encoded, device);
    const RecordMatrix& matrix = loaded.matrix;
    const GuardedTensor x = numbers(64, kShape.columns);
    const Expected all = expected_of(x.view(), w.view);
    for (int64_t tokens : {1, 8, 13, 33, 64}) {
      const Tensor some = x.view().rows(0, tokens);
      const auto check = [&](const std::string& name, int64_t bytes, auto multiply) {
        SCOPED_TRACE(fmt::format("{}, {} tokens", name, tokens));
        const GuardedTensor y(GetParam(), {tokens, kShape.rows}, Layout::contiguous, kGpu);
        auto scratch = exec->workspace.scope();
        RecordMatmulOperands operands{
            .x = some.raw(),
            .x_stride = some.row_stride(),
            .y = y.view().raw(),
            .y_stride = y.view().row_stride(),
            .tokens = tokens,
            .dtype = some.dtype(),
            .workspace = scratch.tensor(DType::f32, {bytes / 4 + 1}).raw()};
        multiply(operands);
        gpu->cuda.synchronize();
        ASSERT_TRUE(all_close(y.view(), first_rows(all, tokens, kShape.rows), kTolerance));
        ASSERT_TRUE(y.guards_intact());
      };
      for (const RecordMatmulConfig& config : record_matmul_candidates(matrix, tokens)) {
        ASSERT_TRUE(record_matmul_fits(matrix, config, tokens));
        check(record_matmul_name(config), record_matmul_workspace_bytes(matrix, tokens),
              [&](const RecordMatmulOperands& operands) {
                record_matmul_cuda(matrix, operands, config, with_pdl(tokens % 2 == 0));
              });
      }
      for (const RecordWgmmaConfig& config : record_wgmma_candidates(matrix, tokens)) {
        ASSERT_TRUE(record_wgmma_fits(matrix, config));
        check(record_wgmma_name(config), record_wgmma_workspace_bytes(matrix, config),
              [&](const RecordMatmulOperands& operands) {
                record_wgmma_cuda(matrix, operands, config, with_pdl(tokens % 2 == 0));
              });
      }
    }
  }

  std::unique_ptr<WeightMatrix> load(const OwnedTensor& w) {
    return tca_bme_format().load(tca_bme::encode_records(w.view, LayoutFor::speed, cpu.threads),
                                 kGpu);
  }

  void check_product(const WeightMatrix& loaded, const OwnedTensor& w, int64_t tokens) {
    const GuardedTensor x = numbers(tokens, kShape.columns);
    const GuardedTensor y(GetParam(), {tokens, kShape.rows}, Layout::contiguous, kGpu);
    loaded.matmul(x.view(), y.view(), {}, *exec);
    gpu->cuda.synchronize();
    EXPECT_TRUE(all_close(y.view(), expected_of(x.view(), w.view), kTolerance));
    EXPECT_TRUE(y.guards_intact());
  }
};
INSTANTIATE_TEST_SUITE_P(Gpu, GpuUnevenRecords, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(GpuUnevenRecords, EveryConfiguration) {
  for (double density : kDensities) {
    for (const OwnedTensor& w : uneven_weights(density)) {
      SCOPED_TRACE(fmt::format("density {}", density));
      check_all_configs(w, clusters);
      check_all_configs(w, {6, 3, 2, 1, 1});  // as on a device that holds few blocks at once
    }
  }
}

TEST_P(GpuUnevenRecords, SumsDependNeitherOnTokensNorOnTheRun) {
  for (double density : kDensities) {
    const OwnedTensor w = weight_with(density, {{5, 3}, {5, 4}, {0, 0}, {23, 17}});
    const std::unique_ptr<WeightMatrix> loaded = load(w);
    exec->sums = Sums::batch_invariant;
    const GuardedTensor x = numbers(64, kShape.columns);
    const GuardedTensor all(GetParam(), {64, kShape.rows}, Layout::contiguous, kGpu);
    loaded->matmul(x.view(), all.view(), {}, *exec);
    for (int64_t tokens : {1, 9, 40, 64}) {
      const GuardedTensor y(GetParam(), {tokens, kShape.rows}, Layout::contiguous, kGpu);
      loaded->matmul(x.view().rows(0, tokens), y.view(), {}, *exec);
      gpu->cuda.synchronize();
      EXPECT_TRUE(same_bits(y.view(), all.view().rows(0, tokens))) << tokens << " tokens";
    }
    exec->sums = Sums::fastest;
  }
}

TEST_P(GpuUnevenRecords, ExpandToWhatTheyWere) {
  for (double density : kDensities) {
    for (const OwnedTensor& w : uneven_weights(density)) {
      const std::unique_ptr<WeightMatrix> loaded = load(w);
      for (const Range& rows : {Range{0, kShape.rows}, Range{60, 77}, Range{1499, 1}}) {
        const GuardedTensor dense(GetParam(), {rows.count, kShape.columns}, Layout::contiguous,
                                  kGpu);
        loaded->expand(rows, dense.view(), *exec);
        gpu->cuda.synchronize();
        EXPECT_TRUE(same_bits(dense.view(), w.view.rows(rows.begin, rows.count)));
        EXPECT_TRUE(dense.guards_intact());
      }
    }
  }
}

// Pairs of weights of one shape and percentage of nonzeros, one of which has a full record: tuned
// together and one after the other, in both orders, with a cache that is empty or another's.
TEST_P(GpuUnevenRecords, APlanFitsAllWeightsThatItIsUsedFor) {
  constexpr int64_t kBuckets[] = {1, 16, 64};
  for (double density : {0.5, 0.45, 0.32, 0.25, 0.1}) {
    std::vector<OwnedTensor> weights;
    weights.push_back(weight(kShape, density));
    weights.push_back(weight_with(density, {{11, 7}}));
    weights.push_back(sloping_weight(density));
    for (const std::vector<size_t>& order :
         {std::vector<size_t>{0, 1}, {1, 0}, {2, 1, 0}, {0, 2, 1}}) {
      SCOPED_TRACE(fmt::format("density {}, {} first", density, order.front()));
      std::vector<std::unique_ptr<WeightMatrix>> loaded;
      std::vector<const WeightMatrix*> alike;
      for (size_t i : order) {
        loaded.push_back(load(weights[i]));
        alike.push_back(loaded.back().get());
      }
      TuneCache cache;
      for (const WeightMatrix* const& each : alike) {  // each finds what was found for another
        each->tune({.alike = {&each, 1}, .epilogue = {}, .y = GetParam(), .tokens = kBuckets},
                   cache, *exec);
      }
      for (int turn = 0; turn < 2; ++turn) {
        for (size_t i = 0; i < loaded.size(); ++i) {
          for (int64_t tokens : {1, 16, 50}) {
            check_product(*loaded[i], weights[order[i]], tokens);
          }
        }
        alike.front()->tune({.alike = alike, .epilogue = {}, .y = GetParam(), .tokens = kBuckets},
                            cache, *exec);
      }
    }
  }
}

// A plan of a matrix of small records is not taken for one whose records do not fit it.
TEST_P(GpuUnevenRecords, APlanThatDoesNotFitIsReplaced) {
  RecordMatrix even{.rows = 7168, .columns = 28672, .chunks = 8, .clusters = clusters};
  even.largest_record = even.common_record = 6800;
  RecordMatrix full = even;
  full.largest_record = full.common_record = 17920;
  int refused = 0;
  for (int64_t tokens : {1, 16, 64}) {
    for (const RecordMatmulConfig& config : record_matmul_candidates(even, tokens)) {
      refused += record_matmul_fits(full, config, tokens) ? 0 : 1;
    }
  }
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace sparsellm
