#pragma once

#include <cstdint>

// What products with general_sparse take from the workspace on a CUDA device, by shapes alone. In
// every build: what a model takes on a GPU can be asked without one.
namespace sparsellm::general_sparse {

// Of a tile of slice_product.cuh.
inline constexpr int kMostTileTokens = 8;
// Products of more are those of the expanded weight, in pieces that overlap: one alone, small
// enough to take little memory, leaves most of the GPU idle.
inline constexpr int64_t kMostKernelTokens = 64;

// The most that slice_product_cuda() needs for this many tokens; 0 with one panel.
int64_t slice_workspace_bytes(int64_t rows, int64_t panels, int64_t tokens);

// Of a weight whose kernels take so much, or which is expanded.
int64_t with_expansion(int64_t kernel_bytes, int64_t rows, int64_t columns, int64_t tokens);

// Of a weight with slices, by any of its plans.
int64_t slices_or_expansion_bytes(int64_t rows, int64_t columns, int64_t panels, int64_t tokens);

}  // namespace sparsellm::general_sparse
