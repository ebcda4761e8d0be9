#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "sparse/ablation/ablated_weight.h"

// The ablation of the kernel for few tokens (sparse/tiled_csl/cuda/tile_matmul.cuh). Two variants
// multiply by the same nonzeros as words alone (word_records.h), in the two orders whose stores
// Flash-LLM compares (Xia et al., VLDB 2024, section 4.3 and figure 11).
namespace sparsellm::tiled_csl {

// What is taken away, or put in its place.
enum class Ablation : uint8_t {
  none,
  memory_only,   // pieces are fetched, and of each the header is read
  extract_only,  // one piece is extracted again and again, and the tile cleared; nothing is fetched
  tensor_cores_only,  // a tile of zeros is multiplied by x; nothing is fetched or extracted
  no_overlap,         // of a warp: what it needs is fetched when it needs it
  ordered_words,      // all nonzeros are words, which go round the banks
  random_words,       // in random order
};

// w [out, in], f16 and contiguous, on the CUDA device of ctx, which outlives the result; it is
// encoded there, copies(bytes of one) times. Products have the configuration that a rule chooses
// for the number of tokens. Throws Error for another dtype, for a GPU that the kernel does not run
// on, and in a CPU-only build.
std::unique_ptr<AblatedWeight> ablate(const Tensor& w,
                                      const std::function<int64_t(int64_t bytes)>& copies,
                                      ExecContext& ctx);

}  // namespace sparsellm::tiled_csl
