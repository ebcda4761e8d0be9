#include "engine/calibrate.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

#include "kernels/add.h"
#include "kernels/base/error.h"
#include "models/build_decoder.h"
#include "models/kv_cache.h"

namespace sparsellm {
namespace {

Tensor tensor_of(std::vector<int32_t>& values) {
  return Tensor(values.data(), DType::i32, {std::ssize(values)}, Device{});
}

// The tables of a step that is one whole sequence, in the first pages of a pool.
class PrefillTables {
 public:
  explicit PrefillTables(int64_t longest)
      : positions_(static_cast<size_t>(longest)), pages_(static_cast<size_t>(pages_for(longest))) {
    std::iota(positions_.begin(), positions_.end(), 0);
    std::iota(pages_.begin(), pages_.end(), 0);
  }

  // Valid until the next call.
  PagedBatch batch(int64_t tokens) {
    query_start_ = {0, static_cast<int32_t>(tokens)};
    kv_length_ = {static_cast<int32_t>(tokens)};
    return {.query_start = tensor_of(query_start_),
            .kv_length = tensor_of(kv_length_),
            .page_table = Tensor(pages_.data(), DType::i32, {1, std::ssize(pages_)}, Device{}),
            .positions = tensor_of(positions_).rows(0, tokens)};
  }

 private:
  std::vector<int32_t> query_start_;
  std::vector<int32_t> kv_length_;
  std::vector<int32_t> positions_;
  std::vector<int32_t> pages_;
};

void check_sequences(const ModelConfig& config,
                     const std::vector<std::vector<int32_t>>& sequences) {
  require(!sequences.empty(), "there are no tokens to calibrate with");
  for (size_t i = 0; i < sequences.size(); ++i) {
    const std::vector<int32_t>& ids = sequences[i];
    require(!ids.empty(), "sequence {} to calibrate with is empty", i);
    require(std::ssize(ids) <= config.max_positions,
            "sequence {} to calibrate with has {} tokens, more than the model's context of {}", i,
            ids.size(), config.max_positions);
    for (int32_t id : ids) {
      require(id >= 0 && id < config.vocab_size,
              "sequence {} to calibrate with has the token id {}, outside the vocabulary [0, {})",
              i, id, config.vocab_size);
    }
  }
}

Calibrator::Norms norms_of(int64_t block, const std::deque<InputSums>& inputs) {
  Calibrator::Norms result;
  for (const InputSums& input : inputs) {
    std::vector<float> norms;
    for (double square : input.squares) {
      const auto norm = static_cast<float>(std::sqrt(square));
      require(std::isfinite(norm), "block {}: the input feature {} of {} has the norm {}", block,
              norms.size(), input.modules.front(), norm);
      norms.push_back(norm);
    }
    for (const std::string& module : input.modules) {
      result[module] = norms;
    }
  }
  return result;
}

void check_output(int64_t block, const std::string& module, const Tensor& hidden,
                  ThreadPool& threads) {
  threads.parallel_for(hidden.size(0), 1, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const float* const row = hidden.row<float>(token);
      require(std::all_of(row, row + hidden.size(1), [](float x) { return std::isfinite(x); }),
              "block {}: after {} the hidden state of a token is not finite", block, module);
    }
  });
}

}  // namespace

Calibrator::Calibrator(const ModelConfig& config, const Checkpoint& checkpoint,
                       std::vector<std::vector<int32_t>> sequences, ThreadPool& threads,
                       std::optional<DType> dtype)
    : config_(config), checkpoint_(&checkpoint), threads_(&threads), dtype_(dtype) {
  config_.activation_sparsity = {};  // all rows are those of prompts
  check_sequences(config, sequences);
  int64_t tokens = 0;
  for (const std::vector<int32_t>& ids : sequences) {
    lengths_.push_back(std::ssize(ids));
    tokens += std::ssize(ids);
  }
  longest_ = *std::max_element(lengths_.begin(), lengths_.end());
  hidden_ = allocate_tensor({}, DType::f32, {tokens, config.hidden_size},
                            fmt::format("the hidden states of {} tokens to calibrate with (fewer "
                                        "tokens take less)",
                                        tokens));
  embed(sequences);
}

void Calibrator::embed(std::vector<std::vector<int32_t>>& sequences) {
  CheckpointLoader weights(*checkpoint_, {}, std::nullopt, {});
  if (dtype_) {
    weights.round_to(*dtype_);
  }
  DecoderInput input = build_input(config_, weights);
  rope_frequencies_ = std::move(input.rope_frequencies);
  Workspace workspace({}, 0);
  ExecContext exec{.device = {}, .workspace = workspace, .threads = *threads_};
  PrefillTables tables(longest_);
  int64_t row = 0;
  for (std::vector<int32_t>& ids : sequences) {
    const int64_t length = std::ssize(ids);
    input.embedding.forward({.token_ids = tensor_of(ids), .batch = tables.batch(length)},
                            hidden_.view.rows(row, length), exec);
    row += length;
  }
}

Calibrator::Norms Calibrator::norms(int64_t block, const LinearWeights& original) {
  return run(block, original, Output::dropped);
}

void Calibrator::advance(int64_t block, const LinearWeights& pruned) {
  run(block, pruned, Output::kept);
}

Calibrator::Norms Calibrator::run(int64_t block, const LinearWeights& weights, Output output) {
  require(next_block_.has_value(), "block {}: the calibration has failed before", block);
  require(block == *next_block_, "block {} is not the next one to calibrate, which is block {}",
          block, *next_block_);
  BlockLoader loader(*checkpoint_, weights, dtype_);
  const DecoderLayer layer = build_layer(config_, block, loader);

  const KvCache kv({},
                   {.layers = 1,
                    .kv_heads = config_.num_kv_heads,
                    .head_dim = config_.head_dim,
                    .dtype = DType::f32},
                   pages_for(longest_));
  const int64_t stream_bytes = Workspace::tensor_bytes(DType::f32, {longest_, config_.hidden_size});
  Workspace workspace({}, layer.workspace_bytes(longest_, DType::f32, {}, Sums::batch_invariant) +
                              layer_inputs_bytes(longest_, rope_frequencies_.view) +
                              2 * stream_bytes);
  ExecContext exec{.device = {}, .workspace = workspace, .threads = *threads_};
  PrefillTables tables(longest_);

  if (output == Output::kept) {
    next_block_.reset();
  }
  int64_t row = 0;
  for (int64_t length : lengths_) {
    auto scratch = workspace.scope();
    const Tensor stored = hidden_.view.rows(row, length);
    Tensor x = stored;
    if (output == Output::dropped) {
      x = scratch.like(stored);
      copy_bytes({}, x.raw(), {}, stored.raw(), stored.bytes());
    }
    Tensor delta = scratch.like(stored);
    const LayerInputs inputs =
        layer_inputs(tables.batch(length), rope_frequencies_.view, scratch, exec);
    layer.forward(x, inputs, kv.layer(0), delta, exec);
    add(delta, x, exec, config_.residual_scale);
    row += length;
  }
  Norms result = norms_of(block, loader.inputs());
  if (output == Output::kept) {
    check_output(block, loader.inputs().back().modules.back(), hidden_.view, *threads_);
    next_block_ = block + 1;
  }
  return result;
}

}  // namespace sparsellm
