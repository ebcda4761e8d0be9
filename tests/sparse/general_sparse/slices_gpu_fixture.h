#pragma once

#include <memory>
#include <vector>

#include "sparse/general_sparse/cuda/general_weight.cuh"
#include "sparse/general_sparse/general_sparse.h"
#include "tests/sparse/gpu_weight_test.h"

namespace sparsellm::testing {

// Products with weights in the format general_sparse on CUDA, against products in double.
class GpuGeneralSparse : public GpuWeightTest {
 protected:
  std::unique_ptr<WeightMatrix> load(const Tensor& w, const general_sparse::Layout& layout) {
    return general_sparse_format().load(
        general_sparse::encode(compress_rows(w, cpu.threads), layout, cpu.threads), load_context());
  }
  // In the layout of the rule.
  std::unique_ptr<WeightMatrix> load(const Tensor& w) {
    return general_sparse_format().load(general_sparse_format().encode(w, cpu.threads),
                                        load_context());
  }

  // Some of each kind that has kernels.
  static std::vector<general_sparse::Layout> layouts_with_kernels() {
    using general_sparse::PositionCode;
    std::vector<general_sparse::Layout> layouts;
    for (const PositionCode code : {PositionCode::i8, PositionCode::u16}) {
      for (const int shared_rows : {1, 2, 4, 8}) {
        for (const int64_t panel : {64, 256, 8192}) {
          layouts.push_back({.positions = code,
                             .shared_rows = shared_rows,
                             .panel_columns = panel,
                             .window_rows = (panel == 64 ? 32 : 128) * shared_rows,
                             .sorted = panel != 256,
                             .interleave = 32,
                             .vector = 8 / shared_rows});
        }
      }
    }
    for (const PositionCode code : {PositionCode::u16, PositionCode::u32}) {
      for (const int shared_rows : {1, 2, 4, 8}) {
        for (const int vector : {1, 4}) {
          if (vector == 1 || shared_rows == 1) {
            layouts.push_back({.positions = code,
                               .shared_rows = shared_rows,
                               .panel_columns = code == PositionCode::u32 ? 0 : 65536,
                               .window_rows = 128 * shared_rows,
                               .sorted = vector == 1,
                               .vector = vector});
          }
        }
      }
    }
    return layouts;
  }

  static const general_sparse::CudaGeneralWeight& on_cuda(const WeightMatrix& weight) {
    return dynamic_cast<const general_sparse::CudaGeneralWeight&>(weight);
  }
};

}  // namespace sparsellm::testing
