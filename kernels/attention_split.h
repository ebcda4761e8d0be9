#pragma once

#include <cstdint>

// How decode attention on CUDA is cut up, as far as its workspace follows from that.
namespace sparsellm::attention_decode {

// Query heads of a group that one block takes.
inline constexpr int kHeadsPerBlock = 8;  // the columns of an mma
// Of a split launch: bounds the workspace on any device.
inline constexpr int64_t kMaxBlocks = 1024;

// Parts of a group of query heads, each for one block.
constexpr int64_t pieces_of(int64_t heads, int64_t kv_heads) {
  return (heads / kv_heads + kHeadsPerBlock - 1) / kHeadsPerBlock;
}

}  // namespace sparsellm::attention_decode
