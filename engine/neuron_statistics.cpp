#include "engine/neuron_statistics.h"

#include <algorithm>
#include <mutex>
#include <span>

#include "sparse/activation/sign_predictor.h"

namespace sparsellm {
namespace {

constexpr int64_t kRowsOfAThread = 8;  // its histogram takes as long to add as some thousand votes

template <class T>
std::span<const T> rows_of(const Tensor& x, int64_t begin, int64_t end) {
  return {x.row<T>(begin), static_cast<size_t>((end - begin) * x.size(1))};
}

}  // namespace

NeuronStatistics::NeuronStatistics(int64_t layers, Votes votes, const std::vector<float>& alphas)
    : votes_(votes),
      layers_(static_cast<size_t>(layers), Layer{.votes = VoteHistogram(alphas)}),
      signs_(static_cast<size_t>(layers)),
      workspace_({}, 0) {}

void NeuronStatistics::observe(const Neurons& neurons, ExecContext& ctx) {
  const std::scoped_lock counts(mutex_);
  Layer& layer = layers_.at(static_cast<size_t>(neurons.layer));
  OwnedSignWords& signs = signs_.at(static_cast<size_t>(neurons.layer))[neurons.first];
  const int64_t tokens = neurons.values.size(0);
  const int64_t count = neurons.values.size(1);
  const int64_t bytes = 2 * Workspace::tensor_bytes(DType::i32, {tokens, count}) +
                        Workspace::tensor_bytes(DType::u8, {tokens, count}) +
                        sign_predictor_workspace_bytes({}, neurons.x.size(1), tokens);
  if (workspace_.bytes() < bytes) {
    workspace_ = Workspace({}, bytes);
  }
  ExecContext own{.device = {}, .workspace = workspace_, .threads = ctx.threads, .isa = ctx.isa};
  if (signs.columns == 0) {
    signs = pack_sign_words(neurons.weight, own);
  }
  auto scratch = workspace_.scope();
  const Tensor negative = scratch.tensor(DType::i32, {tokens, count});
  const Tensor positive = scratch.tensor(DType::i32, {tokens, count});
  const Tensor active = scratch.tensor(DType::u8, {tokens, count});
  count_votes(neurons.x, signs.view(), votes_, negative, positive, own);
  std::mutex mutex;
  ctx.threads.parallel_for(tokens, kRowsOfAThread, [&](int64_t begin, int64_t end) {
    const std::span<const float> values = rows_of<float>(neurons.values, begin, end);
    std::transform(values.begin(), values.end(), active.row<uint8_t>(begin),
                   [](float value) { return static_cast<uint8_t>(value != 0.0f); });
    VoteHistogram votes{{layer.votes.alphas().begin(), layer.votes.alphas().end()}};
    votes.add(rows_of<int32_t>(negative, begin, end), rows_of<int32_t>(positive, begin, end),
              rows_of<uint8_t>(active, begin, end));
    const std::scoped_lock lock(mutex);
    layer.votes.add(votes);
  });
  layer.unions.add(count_unions(active));
}

}  // namespace sparsellm
