#include "engine/rank.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "engine/memory_fit.h"
#include "engine/resolve_options.h"
#include "kernels/base/comm.h"
#include "kernels/base/error.h"
#include "kernels/base/token_buckets.h"
#include "models/build_decoder.h"

namespace sparsellm {
namespace {

void log_activation_sparsity(const ActivationSparsity& sparsity, const WeightLoader& weights,
                             spdlog::logger& log) {
  if (sparsity.mode == ActivationSparsity::Mode::off) {
    return;
  }
  log.info("activation sparsity: {}", describe(sparsity));
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  if (const WeightLoader::Decoded& decoded = weights.decoded(); decoded.bytes > 0) {
    log.info(
        "activation sparsity: MLPs that are stored in a sparse format are dense here, {:.1f} MiB "
        "instead of {:.1f}",
        mib(decoded.bytes), mib(decoded.stored_bytes));
  }
}

}  // namespace

Rank::Rank(EngineOptions options, ModelConfig config, WeightLoader& weights, Communicator* comm)
    : options_(std::move(options)), config_(std::move(config)), comm_(comm) {
  if (options_.device.is_cuda()) {
    require_model_fits(config_, *weights.shapes(), options_, memory_of_rank(options_));
  }
  decoder_ = build_decoder(config_, weights);
  weight_bytes_ = weights.loaded_bytes();
  if (options_.log != nullptr) {
    for (const std::string& notice : decoder_->notices()) {
      options_.log->warn("{}", notice);
    }
    log_activation_sparsity(config_.activation_sparsity, weights, *options_.log);
  }
}

void Rank::prepare() {
  RunnerOptions runner_limits = runner_options(options_, config_);
  runner_limits.comm = comm_;
  runner_ = make_runner(*decoder_, runner_limits);
  if (options_.wrap_runner) {
    runner_ = options_.wrap_runner(std::move(runner_));
  }
  // What is deterministic has to be found out, also by rules, and before the KV cache takes the
  // memory that this needs.
  const bool measures = options_.tuning == Tuning::measured;
  if (!options_.device.is_cuda() || (!measures && !options_.deterministic)) {
    return;
  }
  const StepRows rows = step_rows(runner_limits);
  TuneCache cache(measures ? options_.tune_cache : std::filesystem::path());
  if (options_.log != nullptr && !cache.problem().empty()) {
    options_.log->warn("{}", cache.problem());
  }
  if (comm_ != nullptr && comm_->rank() != 0) {
    take_choices(cache);
  }
  ExecContext alone = exec();
  alone.comm = nullptr;
  tuned_choices_ = decoder_->tune(token_buckets_up_to(rows.hidden),
                                  token_buckets_up_to(rows.logits), cache, alone);
  if (comm_ != nullptr && comm_->rank() != 0) {
    return;
  }
  if (comm_ != nullptr) {
    give_choices(cache);
  }
  try {
    cache.save();
  } catch (const Error& error) {
    if (options_.log != nullptr) {
      options_.log->warn("{}", error.what());  // the next load measures again
    }
  }
}

void Rank::give_choices(const TuneCache& cache) {
  const std::string text = cache.text();
  std::vector<std::byte> bytes(text.size());
  std::ranges::copy(std::as_bytes(std::span(text)), bytes.begin());
  comm_->broadcast_bytes(bytes, 0, Patience::while_alive);
}

// What rank 0 has not chosen, for other shapes or another kind of GPU, this rank measures.
void Rank::take_choices(TuneCache& cache) {
  std::vector<std::byte> bytes;
  comm_->broadcast_bytes(bytes, 0, Patience::while_alive);
  cache.add({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

int64_t Rank::fitting_pages() const {
  const MemoryNeed others{.weights = weight_bytes_,
                          .step = step_bytes(),
                          .context_size = choose_context_size(options_, config_)};
  return fitting_kv_pages(others, choose_kv_shape(options_, *decoder_), options_,
                          memory_of_rank(options_));
}

void Rank::start(int64_t kv_pages) {
  kv_.emplace(options_.device, choose_kv_shape(options_, *decoder_), kv_pages);
  if (options_.warm_up) {
    runner_->warm_up(*kv_);
  }
}

RankLimits Rank::limits() const {
  const RunnerOptions of_runner = runner_options(options_, config_);
  return {.max_requests = of_runner.limits.max_requests,
          .step_tokens = of_runner.limits.step_tokens,
          .pages_per_request = of_runner.pages_per_request,
          .kv_pages = kv_->pages(),
          .vocabulary = config_.vocab_size,
          .samples = samples()};
}

std::vector<NeuronCounts> Rank::neuron_counts() const {
  std::vector<NeuronCounts> counts;
  for (int64_t layer = 0; layer < decoder_->layers(); ++layer) {
    counts.push_back(decoder_->neuron_counts(layer));
  }
  return counts;
}

}  // namespace sparsellm
