#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/config.h"
#include "sparse/weight_matrix.h"

namespace sparsellm {

// Tensor parallelism: `degree` ranks, each on a device of its own, share the weights of one model
// (Shoeybi et al., Megatron-LM, 2019, section 3). Which of them a rank has is said here and by what
// builders request (models/weights/weight_request.h), and nowhere else. With one rank every range
// is the whole.
struct Shard {
  int64_t rank = 0;  // in [0, degree)
  int64_t degree = 1;

  friend bool operator==(const Shard&, const Shard&) = default;
};

// Why that many ranks cannot share a model, in one line: "3 GPUs cannot share 40 attention heads".
// Empty if they can: the degree divides the attention heads; it divides the heads of keys and
// values or is a multiple of them. All else may be shared unevenly.
std::string why_not_shared(const ModelConfig& config, int64_t degree);
// Throws Error for that reason, and for a rank that there is not.
void require_shared(const ModelConfig& config, const Shard& shard);

// What follows is of a rank of a degree for which there is no such reason.

// Whole heads, equally many for every rank. Where there are fewer heads than ranks, as of keys and
// values, consecutive ranks have the same one.
Range shared_heads(int64_t heads, const Shard& shard);
// Of anything else that is counted from 0 up to `size`: neurons of an MLP, rows of the vocabulary.
// Shares begin at multiples of 64, where tiles of sparse formats do, and differ by at most 64; each
// element is in exactly one. The last ranks have none if there is too little; rank 0 has some.
inline constexpr int64_t kShareStep = 64;
Range shared_elements(int64_t size, const Shard& shard);

Range query_heads(const ModelConfig& config, const Shard& shard);
Range kv_heads(const ModelConfig& config, const Shard& shard);
Range neurons(const ModelConfig& config, const Shard& shard);
// Rows of the output projection: of the logits, the columns that the rank computes.
Range vocabulary(const ModelConfig& config, const Shard& shard);

// Where the shares of all ranks in `size` elements begin, and where the last one ends:
// [degree + 1].
std::vector<int64_t> share_borders(int64_t size, int64_t degree);

}  // namespace sparsellm
