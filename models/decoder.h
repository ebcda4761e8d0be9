#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/buffer.h"
#include "models/block_weight.h"
#include "models/decoder_layer.h"
#include "models/format_sum.h"
#include "models/input_embedding.h"
#include "models/kv_cache.h"
#include "models/norm.h"
#include "models/step_inputs.h"
#include "models/weights/shares.h"

namespace sparsellm {

class SparseMlp;  // models/sparse_mlp.h

// A decoder-only language model on one device, or the share of it that a rank has there, built by
// models/build_decoder.h.
class Decoder {
 public:
  struct Parts {
    Buffer memory;  // of the weights that do not have their own
    InputEmbedding embedding;
    OwnedTensor rope_frequencies;  // f32 [head_dim / 2], or empty
    std::vector<DecoderLayer> layers;
    float residual_scale = 1.0f;  // of what the last block adds
    Norm final_norm;
    Linear head;  // [the rank's rows of the vocabulary, hidden]
    Shard shard = {};
  };

  Decoder(Parts parts, DType activation_dtype);

  // hidden f32 [tokens, hidden_size]: the residual stream after the last layer. The step's keys and
  // values are added to `kv`.
  void forward(const StepInputs& step, const KvCache& kv, Tensor hidden, ExecContext& ctx) const;

  // logits f32 [n, vocabulary] of the rows of `hidden` that rows i32 [n] names; without rows, of
  // all. Of several ranks each computes vocabulary() of them, and all get those of the others;
  // without a communicator they stay as they are.
  void logits(const Tensor& hidden, const Tensor& rows, Tensor logits, ExecContext& ctx) const;

  int64_t hidden_size() const { return parts_.embedding.hidden_size(); }
  int64_t vocab_size() const { return parts_.embedding.vocab_size(); }
  // The columns of the logits that the rank computes.
  Range vocabulary() const { return shared_elements(vocab_size(), parts_.shard); }
  DType activation_dtype() const { return activation_dtype_; }
  KvShape kv_shape() const;  // of the rank's heads

  // Chooses kernels for linear layers, for each of these numbers of rows (WeightMatrix::tune);
  // logit_tokens are those of logits(). Unless sums have to be batch invariant, it also chooses up
  // to how many rows MLPs skip the weights of zero neurons (SparseMlp::tune). Returns how many
  // choices it measured.
  int64_t tune(std::span<const int64_t> tokens, std::span<const int64_t> logit_tokens,
               TuneCache& cache, ExecContext& ctx);

  // SparseMlp::most_rows() of all layers that have one.
  std::set<int64_t> most_rows_by_neurons() const;

  // What there is to say of the weights (WeightMatrix::notice()), each line once.
  std::set<std::string> notices() const;

  // Of all linear layers of blocks, in the order of names of formats.
  std::vector<FormatSum> linear_weights() const;
  // The same one by one, block by block.
  std::vector<BlockWeight> block_weights() const;

  int64_t layers() const { return static_cast<int64_t>(parts_.layers.size()); }
  // What the MLP of a layer has counted.
  NeuronCounts neuron_counts(int64_t layer) const;

  // What a workspace has to have for forward() of any number of rows up to `tokens`, and then for a
  // tensor of logits of `logit_rows` rows and logits() into it.
  int64_t workspace_bytes(int64_t tokens, int64_t logit_rows, Device device, Sums sums) const;

 private:
  std::vector<const Linear*> linears() const;  // of all layers
  std::vector<SparseMlp*> sparse_mlps() const;
  int64_t tune_mlps(std::span<const int64_t> tokens, TuneCache& cache, ExecContext& ctx);

  Parts parts_;
  DType activation_dtype_;
  std::vector<int64_t> vocabulary_borders_;  // of all ranks
};

}  // namespace sparsellm
