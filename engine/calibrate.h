#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/block_loader.h"
#include "kernels/base/buffer.h"
#include "kernels/base/parallel.h"
#include "models/config.h"
#include "models/storage/safetensors.h"

namespace sparsellm {

// Collects what Wanda needs to know of the inputs of linear layers: for each input feature its L2
// norm over all calibration tokens (Sun et al. 2024, section 3). Block after block, each twice, as
// the paper prunes: norms() runs a block with its original weights, on inputs that come out of the
// pruned blocks before it; then the caller prunes the block, and advance() runs it with the pruned
// weights, for the inputs of the next one:
//   Calibrator calibrator(config, checkpoint, sequences, threads);
//   for (int64_t block = 0; block < config.num_layers; ++block) {
//     const auto norms = calibrator.norms(block, original_weights);
//     ... prune the weights of the block ...
//     calibrator.advance(block, pruned_weights);
//   }
// On the CPU, in f32, with attention within a sequence. Everything but the weights of linear layers
// comes from the checkpoint. The results have the same bits for any number of threads.
//
// Memory: 4 * tokens * hidden bytes for the hidden states of all tokens, and while a block runs
//   - its weights as they are given (and, while the block is built, one of q, k and v, or of gate
//     and up, once more, since these are joined),
//   - 8 * kv_heads * head_dim bytes of keys and values for each token of the longest sequence,
//     rounded up to pages,
//   - 4 * (3 * hidden + head_dim + max(2 * (heads + kv_heads) * head_dim, 3 * intermediate)) bytes
//     of workspace for each of these; without gate and rotary positions less.
// The embedding tables are in memory only while an object is made.
class Calibrator {
 public:
  // sequences: token ids, each sequence from position 0 on. Checkpoint and threads outlive this
  // object. `dtype`: what comes from the checkpoint is rounded to it, as if it were stored so.
  // Throws Error, naming the sequence, for one that is empty or longer than the model's context,
  // and for an id outside the vocabulary; if there are none; and as CheckpointLoader does.
  Calibrator(const ModelConfig& config, const Checkpoint& checkpoint,
             std::vector<std::vector<int32_t>> sequences, ThreadPool& threads,
             std::optional<DType> dtype = {});

  // f32 [in] for each linear layer of the block, by module name ("model.layers.3.mlp.up_proj").
  // `block` must be the one that follows the last that was passed to advance(), the first being 0.
  // Throws Error for another one, for weights that do not fit (BlockLoader), and, with the block
  // and the module, for an input that is NaN or infinite.
  using Norms = std::map<std::string, std::vector<float>>;
  Norms norms(int64_t block, const LinearWeights& original);

  // The same block's outputs become the inputs of the next one. Throws Error as norms() does, and
  // for outputs that are not finite. When it has thrown after the weights were there, the object is
  // of no more use, and says so.
  void advance(int64_t block, const LinearWeights& pruned);

  // f32 [tokens, hidden], sequence after sequence: the inputs of the next block.
  const Tensor& hidden() const { return hidden_.view; }

 private:
  enum class Output : uint8_t { dropped, kept };
  Norms run(int64_t block, const LinearWeights& weights, Output output);
  void embed(std::vector<std::vector<int32_t>>& sequences);

  ModelConfig config_;
  const Checkpoint* checkpoint_;
  ThreadPool* threads_;
  std::optional<DType> dtype_;             // of what comes from there
  std::vector<int64_t> lengths_;           // of the sequences
  int64_t longest_ = 0;                    // of these
  OwnedTensor hidden_;                     // f32 [tokens, hidden]
  OwnedTensor rope_frequencies_;           // as in Decoder::Parts
  std::optional<int64_t> next_block_ = 0;  // nothing while hidden_ is between two blocks
};

}  // namespace sparsellm
