#include "engine/calibrate_activation_sparsity.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/calibration_sequences.h"
#include "engine/engine.h"
#include "engine/log_probability.h"
#include "engine/neuron_statistics.h"
#include "kernels/base/error.h"
#include "models/config.h"
#include "sparse/activation/missed_share.h"

namespace sparsellm {
namespace {

using Alphas = std::vector<std::optional<float>>;

constexpr int64_t kDecodedLength = 512;    // of a sequence, if the model takes as many
constexpr int64_t kDecodedSequences = 32;  // at once
constexpr int64_t kMinTokens = 512;  // fewer say nothing of a loss of some tenths of a per cent

// Decodes the same sequences again and again, each time with another engine.
class Scorer {
 public:
  Scorer(const OpenDirectory& model, const ActivationCalibration& calibration,
         std::vector<std::vector<int32_t>> sequences, int passes)
      : model_(model), calibration_(calibration), sequences_(std::move(sequences)) {
    for (const std::vector<int32_t>& ids : sequences_) {
      tokens_ += std::ssize(ids) - 1;
    }
    require(tokens_ >= kMinTokens,
            "{} tokens are too few to calibrate activation sparsity; use at least {}", tokens_,
            kMinTokens);
    total_ = tokens_ * passes;
  }

  struct Score {
    double loss = 0.0;     // mean negative log-likelihood
    double skipped = 0.0;  // share of the neurons
  };
  Score score(const ActivationSparsityRequest& sparsity, NeuronObserver* observer = nullptr) {
    EngineOptions options;
    options.context_size = longest();
    options.max_requests = kDecodedSequences;
    options.threads = calibration_.threads;
    options.activation_sparsity = sparsity;
    options.neuron_observer = observer;
    options.with_tokenizer = false;
    options.progress = [this](int64_t, int64_t) { report(0); };
    Engine engine = Engine::load(model_, options);
    // Added up in the order of the text, whatever the order of the steps.
    std::vector<double> sums(sequences_.size());
    std::string error;
    int64_t scored = 0;
    for (size_t i = 0; i < sequences_.size(); ++i) {
      Request request{.prompt = sequences_[i], .max_tokens = 0, .score_prompt = true};
      request.decode_from = 1;
      request.on_logits = [&, i](int64_t position, std::span<const float> logits) {
        if (const auto next = static_cast<size_t>(position) + 1; next < sequences_[i].size()) {
          sums[i] -= log_probability(logits, sequences_[i][next]);
          ++scored;
        }
      };
      engine.submit(std::move(request), [&error](const TokenEvent& event) {
        if (!event.error.empty()) {
          error = event.error;
        }
      });
    }
    while (error.empty() && engine.step()) {
      report(scored);
    }
    require(error.empty(), "calibration of activation sparsity: {}", error);
    done_ += scored;
    double sum = 0.0;
    for (const double each : sums) {
      sum += each;
    }
    NeuronCounts neurons;
    for (const NeuronCounts& layer : engine.neuron_counts()) {
      neurons += layer;
    }
    return {.loss = sum / static_cast<double>(tokens_), .skipped = neurons.skipped_share()};
  }

 private:
  void report(int64_t scored) const {
    if (calibration_.progress) {
      calibration_.progress(done_ + scored, total_);
    }
  }

  int64_t longest() const {
    return std::ssize(*std::ranges::max_element(
        sequences_, {}, [](const std::vector<int32_t>& ids) { return ids.size(); }));
  }

  const OpenDirectory& model_;
  const ActivationCalibration& calibration_;
  std::vector<std::vector<int32_t>> sequences_;
  int64_t tokens_ = 0;  // that are scored
  int64_t done_ = 0;    // of those of all passes
  int64_t total_ = 0;
};

std::vector<std::vector<int32_t>> sequences_of(const OpenDirectory& model,
                                               const ModelConfig& config,
                                               const ActivationCalibration& calibration) {
  std::vector<std::vector<int32_t>> sequences = calibration_sequences(
      *load_tokenizer(model), {.text = calibration.text,
                               .tokens = calibration.tokens,
                               .length = std::min(config.max_positions, kDecodedLength),
                               .poll = [&calibration] {
                                 if (calibration.progress) {
                                   calibration.progress(0, 1);
                                 }
                               }});
  // One of a single token, which the last may be, has nothing to score.
  std::erase_if(sequences, [](const std::vector<int32_t>& ids) { return ids.size() < 2; });
  return sequences;
}

Alphas alphas_for(const NeuronStatistics& statistics, double missed_share) {
  Alphas alphas;
  for (const NeuronStatistics::Layer& layer : statistics.layers()) {
    alphas.push_back(layer.votes.alpha_for_missed_share(missed_share));
  }
  return alphas;
}

bool predicts_nothing(const Alphas& alphas) {
  return std::ranges::none_of(alphas, [](const auto& alpha) { return alpha.has_value(); });
}

}  // namespace

ActivationSparsity calibrate_activation_sparsity(const OpenDirectory& model,
                                                 const ActivationCalibration& calibration) {
  using Mode = ActivationSparsity::Mode;
  const double max_loss = calibration.max_loss;
  require(max_loss > 0.0 && max_loss < 1.0, "a loss of {} is not in (0, 1)", max_loss);
  const ModelConfig config = read_model_config(model);
  activation_sparsity_for(config, {.mode = Mode::exact});  // has to be possible
  const MissedShareSearch search{.max_loss = max_loss};
  Scorer scorer(model, calibration, sequences_of(model, config, calibration),
                1 + search.evaluations);

  NeuronStatistics statistics(config.num_layers, calibration.votes);
  const Scorer::Score exact = scorer.score({.mode = Mode::exact}, &statistics);
  ActivationSparsity best;  // off
  largest_missed_share(search, [&](double share) {
    ActivationSparsity tried{
        .mode = Mode::predict, .votes = calibration.votes, .alphas = alphas_for(statistics, share)};
    if (predicts_nothing(tried.alphas)) {
      return 0.0;  // nothing is lost; a larger share may predict something
    }
    const Scorer::Score score =
        scorer.score({.mode = Mode::predict, .votes = tried.votes, .alphas = tried.alphas});
    const double loss = std::expm1(score.loss - exact.loss);
    if (loss <= max_loss) {
      tried.skipped = static_cast<float>(score.skipped);
      tried.perplexity_loss = static_cast<float>(loss);
      best = std::move(tried);  // shares that are within the limit only grow
    }
    return loss;
  });
  return best.skipped.value_or(0.0f) > 0.0f ? best : ActivationSparsity{};
}

}  // namespace sparsellm
