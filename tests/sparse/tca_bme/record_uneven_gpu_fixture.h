#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sparse/weight_matrix.h"
#include "tests/sparse/tca_bme/gpu_record_test.h"

namespace sparsellm::testing {

// Matrices whose records differ in size: a few much larger than the others, and rows of records
// that differ, against a product in double.
class GpuUnevenRecords : public GpuWarpgroupTest {
 protected:
  // One for each layout of records.
  static constexpr double kDensities[] = {0.45, 0.25, 0.1};
  static constexpr Shape kShape{1500, 2184};

  struct Block {
    int64_t row;  // of blocks of 64 x 128
    int64_t column;
  };

  // A matrix in which these blocks of 64 x 128 elements have no zeros.
  OwnedTensor weight_with(double density, const std::vector<Block>& dense_blocks);

  // Row blocks become ever denser.
  OwnedTensor sloping_weight(double density);

  std::vector<OwnedTensor> uneven_weights(double density);

  std::unique_ptr<WeightMatrix> load(const OwnedTensor& w);

  // By every kernel and configuration.
  void check_all_configs(const OwnedTensor& w, const ClusterCounts& device);

  void check_product(const WeightMatrix& loaded, const OwnedTensor& w, int64_t tokens);
};

}  // namespace sparsellm::testing
