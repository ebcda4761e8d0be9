#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/base/exec.h"
#include "sparse/cuda_product_operands.h"
#include "sparse/general_sparse/cuda/general_workspace.h"
#include "sparse/general_sparse/cuda/slice_matrix.h"
#include "sparse/general_sparse/format/layout.h"

namespace sparsellm::general_sparse {

// A weight that is multiplied by slice_product.cuh.
struct SliceWeight {
  SliceMatrix matrix;
  Layout layout;
  DType dtype = DType::f16;
  std::vector<int> shares = {};  // for which there are schedules (slice_plan.h)
  const uint32_t* schedules = nullptr;
  int multiprocessors = 0;
  int shared_bytes = 0;  // that a block may have
};

// Whether there are kernels for such encodings: interleaved ones of f16 and bf16, with differences
// or columns of 16 bits, and loads of 16 bytes.
bool has_slice_kernels(const Layout& layout, DType dtype);

// How a product is computed: tokens of a tile, warps of a block, and blocks that a multiprocessor
// has at once. The order of a sum depends on the encoding, on the warps, and on how many blocks
// share the matrix.
struct SliceConfig {
  int tile_tokens = 1;  // 0: as many as there are, and fit; then all tiles have as many blocks
  int warps = 16;
  int blocks = 1;
  bool staged = true;  // x in shared memory; else it is that of one token, read through the L1

  bool operator==(const SliceConfig&) const = default;
};

std::string slice_name(const SliceConfig& config);
// Those that are worth a measurement, the best guess first; all fit.
std::vector<SliceConfig> slice_candidates(const SliceWeight& weight, int64_t tokens);
// Where nothing was measured; nothing if no configuration fits the device.
std::optional<SliceConfig> slice_rule(const SliceWeight& weight, int64_t tokens);
// The one whose sums are the same whatever the number of tokens.
std::optional<SliceConfig> slice_for_any_tokens(const SliceWeight& weight);
bool slice_fits(const SliceWeight& weight, const SliceConfig& config);

// With a workspace of slice_workspace_bytes(), where there are several panels. May be captured in a
// graph.
void slice_product_cuda(const SliceWeight& weight, const CudaProductOperands& operands,
                        const SliceConfig& config, const ExecContext& ctx);

}  // namespace sparsellm::general_sparse
