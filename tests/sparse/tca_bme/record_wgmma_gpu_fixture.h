#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "sparse/tca_bme/cuda/record_wgmma_cuda.h"
#include "tests/sparse/tca_bme/gpu_record_test.h"

namespace sparsellm::testing {

// The products of warpgroups over tca_bme records, against a product in double.
class GpuRecordWgmma : public GpuWarpgroupTest {
 protected:
  static constexpr int kTiles[] = {32, 64, 128, 256};
  // On both sides of the borders of tiles.
  static constexpr int64_t kTokens[] = {1, 17, 31, 32, 33, 64, 65, 130, 256, 257, 300};
  // A density for each layout of records.
  static constexpr double kDensities[] = {0.5, 0.25, 0.1};

  void SetUp() override;

  DeviceMatrix load(const Tensor& w);

  // Those for any number of tokens, the tiles by turns.
  static std::vector<RecordWgmmaConfig> configs_of(const RecordMatrix& matrix);

  // The best guess of each tile and way to share the columns out.
  static std::vector<RecordWgmmaConfig> some_configs_of(const RecordMatrix& matrix);

  // As on a device that holds few blocks at once: clusters go through several rounds, and a product
  // may be several launches.
  static RecordMatrix on_a_small_device(RecordMatrix matrix);

  struct How {
    RecordWgmmaConfig config;
    Epilogue epilogue;
    bool pdl = false;
  };
  // With a workspace that is NaN everywhere, unless the launch is to begin while one before runs.
  void multiply(const RecordMatrix& matrix, const Tensor& x, const Tensor& y, const How& how);

  // The configurations that `takes` takes, with few tokens and with more by turns.
  void multiply_small(const Shape& shape, double density,
                      const std::function<bool(const RecordWgmmaConfig&)>& takes);

  // Rows aligned to 16 bytes, with NaN beside them.
  struct PaddedTensor {
    PaddedTensor(DType dtype, int64_t tokens, int64_t columns);
    GuardedTensor memory;
    Tensor view;
  };
  PaddedTensor padded_numbers(int64_t tokens, int64_t columns);

  std::optional<OwnedTensor> partials;
};

}  // namespace sparsellm::testing
