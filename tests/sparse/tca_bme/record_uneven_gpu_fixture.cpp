#include "tests/sparse/tca_bme/record_uneven_gpu_fixture.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "sparse/tca_bme/cuda/record_plan.h"
#include "sparse/tca_bme/cuda/record_workspace.h"
#include "sparse/tca_bme/tca_bme.h"

namespace sparsellm::testing {

OwnedTensor GpuUnevenRecords::weight_with(double density, const std::vector<Block>& dense_blocks) {
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

OwnedTensor GpuUnevenRecords::sloping_weight(double density) {
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

std::vector<OwnedTensor> GpuUnevenRecords::uneven_weights(double density) {
  std::vector<OwnedTensor> all;
  all.push_back(weight_with(density, {{0, 0}}));
  all.push_back(weight_with(density, {{23, 17}}));
  all.push_back(weight_with(density, {{5, 3}, {5, 4}, {5, 5}, {6, 16}}));
  all.push_back(sloping_weight(density));
  return all;
}

std::unique_ptr<WeightMatrix> GpuUnevenRecords::load(const OwnedTensor& w) {
  return tca_bme_format().load(tca_bme::encode_records(w.view, LayoutFor::speed, cpu.threads),
                               load_context());
}

void GpuUnevenRecords::check_all_configs(const OwnedTensor& w, const ClusterCounts& device) {
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
      CudaProductOperands operands{.x = some.raw(),
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
            [&](const CudaProductOperands& operands) {
              record_matmul_cuda(matrix, operands, config, with_pdl(tokens % 2 == 0));
            });
    }
    for (const RecordWgmmaConfig& config : record_wgmma_candidates(matrix, tokens)) {
      ASSERT_TRUE(record_wgmma_fits(matrix, config));
      check(record_wgmma_name(config), record_wgmma_workspace_bytes(matrix, config, tokens),
            [&](const CudaProductOperands& operands) {
              record_wgmma_cuda(matrix, operands, config, with_pdl(tokens % 2 == 0));
            });
    }
  }
}

void GpuUnevenRecords::check_product(const WeightMatrix& loaded, const OwnedTensor& w,
                                     int64_t tokens) {
  const GuardedTensor x = numbers(tokens, kShape.columns);
  const GuardedTensor y(GetParam(), {tokens, kShape.rows}, Layout::contiguous, kGpu);
  loaded.matmul(x.view(), y.view(), {}, *exec);
  gpu->cuda.synchronize();
  EXPECT_TRUE(all_close(y.view(), expected_of(x.view(), w.view), kTolerance));
  EXPECT_TRUE(y.guards_intact());
}

}  // namespace sparsellm::testing
