#include "tools/bench/random_sparsity.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/add.h"
#include "kernels/base/error.h"
#include "models/build_decoder.h"
#include "models/kv_cache.h"
#include "models/weights/random_loader.h"
#include "sparse/dense/dense.h"
#include "tools/bench/requests.h"

namespace sparsellm {
namespace {

constexpr int64_t kTokens = 64;

// The tables of a step that is one whole sequence.
class RandomText {
 public:
  RandomText(int64_t tokens, int64_t vocab_size, uint64_t seed)
      : query_start_{0, static_cast<int32_t>(tokens)},
        kv_length_{static_cast<int32_t>(tokens)},
        positions_(static_cast<size_t>(tokens)),
        pages_(static_cast<size_t>(pages_for(tokens))) {
    std::iota(positions_.begin(), positions_.end(), 0);
    std::iota(pages_.begin(), pages_.end(), 0);
    BenchRandom random(seed);
    for (int64_t i = 0; i < tokens; ++i) {
      ids_.push_back(static_cast<int32_t>(random.uniform(0, vocab_size - 1)));
    }
  }

  StepInputs step() {
    const auto tensor_of = [](std::vector<int32_t>& values) {
      return Tensor(values.data(), DType::i32, {std::ssize(values)}, Device{});
    };
    return {.token_ids = tensor_of(ids_),
            .batch = {
                .query_start = tensor_of(query_start_),
                .kv_length = tensor_of(kv_length_),
                .page_table = Tensor(pages_.data(), DType::i32, {1, std::ssize(pages_)}, Device{}),
                .positions = tensor_of(positions_)}};
  }

 private:
  std::vector<int32_t> query_start_;
  std::vector<int32_t> kv_length_;
  std::vector<int32_t> positions_;
  std::vector<int32_t> pages_;
  std::vector<int32_t> ids_;
};

// A dense MLP that, when it runs, chooses its alpha and its threshold by its own input, and goes on
// as the sparse MLP with these would.
class ChoosingMlp : public Mlp {
 public:
  ChoosingMlp(std::unique_ptr<Mlp> dense, const NeuronShares& shares, Votes votes,
              ActivationSparsity& chosen)
      : dense_(std::move(dense)), shares_(shares), votes_(votes), chosen_(chosen) {}

  std::vector<const Linear*> linears() const override { return dense_->linears(); }
  int64_t workspace_bytes(int64_t tokens, DType dtype, Sums sums) const override {
    return dense_->workspace_bytes(tokens, dtype, sums) +
           sign_predictor_workspace_bytes({}, linears().front()->weight->in(), tokens);
  }

  void forward(const Tensor& x, const PagedBatch&, Tensor y, ExecContext& ctx) const override {
    const Linear& up = *linears().front();  // with the gate before it, if there is one
    const Linear& down = *linears().back();
    const int64_t tokens = x.size(0);
    const int64_t neurons = down.weight->in();
    const int64_t last = up.weight->out() - neurons;
    const auto make = [&](DType dtype, int64_t rows, int64_t columns) {
      return allocate_tensor({}, dtype, {rows, columns}, "an MLP whose shares are chosen");
    };
    const OwnedTensor sums = make(DType::f32, tokens, up.weight->out());
    up.weight->matmul(x, sums.view, {.bias = up.bias.view, .activation = {}}, ctx);
    const OwnedTensor first = make(up.weight->dtype(), neurons, x.size(1));
    up.weight->expand({.begin = 0, .count = neurons}, first.view, ctx);
    const OwnedSignWords signs = pack_sign_words(first.view, ctx.threads);
    const SignPrediction prediction =
        prediction_for(shares_.predicted, votes_, x, signs.view(), ctx);
    const OwnedTensor active = make(DType::u8, tokens, neurons);
    predict_active(x, signs.view(), prediction, active.view, ctx);
    const float threshold =
        threshold_for(shares_.zeros, sums.view.columns(0, neurons), active.view);
    chosen_.alphas.push_back(prediction.alpha);
    chosen_.thresholds.push_back(threshold);

    const OwnedTensor h = make(DType::f32, tokens, neurons);
    for (int64_t token = 0; token < tokens; ++token) {
      const float* const gate = sums.view.row<float>(token);
      for (int64_t neuron = 0; neuron < neurons; ++neuron) {
        const bool is_active =
            active.view.row<uint8_t>(token)[neuron] != 0 && gate[neuron] > threshold;
        const float factor = last > 0 ? gate[last + neuron] : 1.0f;
        h.view.row<float>(token)[neuron] = is_active ? gate[neuron] * factor : 0.0f;
      }
    }
    down.forward(h.view, y, ctx);
  }

 private:
  std::unique_ptr<Mlp> dense_;
  NeuronShares shares_;
  Votes votes_;
  ActivationSparsity& chosen_;
};

}  // namespace

ActivationSparsity choose_random_sparsity(const ModelConfig& config, const RandomWeights& weights,
                                          const NeuronShares& shares, Votes votes,
                                          ThreadPool& threads) {
  check_shares(shares);
  activation_sparsity_for(config, {.mode = ActivationSparsity::Mode::exact});  // or it throws
  ModelConfig dense = config;
  dense.activation_sparsity = {};
  const int64_t tokens = std::min(kTokens, config.max_positions);
  RandomText text(tokens, config.vocab_size, weights.seed);
  const StepInputs step = text.step();
  RandomLoader loader({}, in_format(weights, {std::string(dense_format().name())}));
  const OwnedTensor hidden =
      allocate_tensor({}, DType::f32, {tokens, config.hidden_size}, "hidden states");
  const OwnedTensor delta =
      allocate_tensor({}, DType::f32, {tokens, config.hidden_size}, "hidden states");
  OwnedTensor rope_frequencies;
  {
    DecoderInput input = build_input(dense, loader);
    Workspace workspace({}, 0);
    ExecContext exec{.device = {}, .workspace = workspace, .threads = threads};
    input.embedding.forward(step, hidden.view, exec);
    rope_frequencies = std::move(input.rope_frequencies);
  }
  const KvCache kv({},
                   {.layers = 1,
                    .kv_heads = config.num_kv_heads,
                    .head_dim = config.head_dim,
                    .dtype = DType::f32},
                   pages_for(tokens));
  ActivationSparsity chosen{.mode = ActivationSparsity::Mode::predict, .votes = votes};
  for (int64_t index = 0; index < config.num_layers; ++index) {
    DecoderLayer layer = build_layer(dense, index, loader);
    layer.mlp = std::make_unique<ChoosingMlp>(std::move(layer.mlp), shares, votes, chosen);
    Workspace workspace({}, layer.workspace_bytes(tokens, DType::f32, {}, Sums::batch_invariant) +
                                layer_inputs_bytes(tokens, rope_frequencies.view));
    ExecContext exec{.device = {}, .workspace = workspace, .threads = threads};
    auto scratch = workspace.scope();
    const LayerInputs inputs = layer_inputs(step.batch, rope_frequencies.view, scratch, exec);
    layer.forward(hidden.view, inputs, kv.layer(0), delta.view, exec);
    add(delta.view, hidden.view, exec, config.residual_scale);
  }
  return chosen;
}

}  // namespace sparsellm
