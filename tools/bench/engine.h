#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/zero_pattern.h"
#include "models/weights/random_weights.h"
#include "tools/cli/args.h"
#include "tools/cli/cli_fwd.h"
#include "tools/cli/rank_server.h"

namespace sparsellm {

// The flags that say what is benchmarked: a model, or random weights in the shapes of a
// config.json.
struct BenchModelArgs {
  ModelArgs model;
  std::string config;  // empty: model.model is the directory of a model
  double sparsity = 0.0;
  std::string plan;                         // file of a SparsityPlan, instead of a sparsity
  std::optional<ZeroPattern> pattern = {};  // of the zeros in random weights
  uint64_t seed = 0;
  std::optional<double> gpu_memory_utilization;
  int64_t gpu_memory = 0;  // EngineOptions::gpu_memory
  int64_t kv_bytes = 0;
  bool deterministic = false;
  bool keeps_planned_formats = false;  // RandomPlanOptions::keeps_formats
};
void add_bench_model_args(CLI::App& app, BenchModelArgs& args);

// Throws UsageError unless one of --config and --model is there, for flags of the other, and for a
// pattern that cannot have the sparsity.
void check_bench_model_args(const BenchModelArgs& args);

// Throws Error for a config, and for a plan, that is refused. Nothing is loaded.
void check_bench_model(const BenchModelArgs& args);

// Of zeros, for a report: "by plan" where the scopes of a plan say it; empty for the model of a
// checkpoint, which has its own.
std::string pattern_name(const BenchModelArgs& args);

// The config of the model that load_bench_engine() makes.
ModelConfig read_bench_config(const BenchModelArgs& args);

// The random weights that it has with args.config. A format of the options is that of all linear
// layers, else those of the plan hold. Throws Error, also for a plan that does not fit the config.
RandomWeights random_weights(const BenchModelArgs& args, const EngineOptions& options);

// Sets alphas and thresholds of activation sparsity such that these shares of the neurons of random
// weights are predicted to be zero, where that is predicted, and zero. Throws Error as
// choose_random_sparsity() does.
void choose_neuron_shares(BenchModelArgs& args, std::optional<double> predicted, double zeros,
                          spdlog::logger& log);

// Of a model that load_bench_engine() makes, for with_ranks(). In the fingerprint of random weights
// is what they depend on.
RankModel bench_rank_model(const BenchModelArgs& args);

struct BenchEngineSize {
  int64_t max_requests = 0;  // at a time
  int64_t prompt = 0;        // tokens of a request's, at most; 0: any number
  int64_t step_tokens = EngineOptions().step_tokens;  // computed in one step, at most
  int64_t context_size = 0;                           // tokens of a request
  bool traces = false;                                // EngineOptions::traces
  bool warm_up = false;                               // EngineOptions::warm_up
  bool leaves_out_sums = false;                       // TensorParallel::leaves_out_sums
  std::vector<int64_t> decode_tokens = {};            // EngineOptions::decode_tokens
};
// Of an engine for these flags. Its steps are no larger than what computes all prompts in one, and
// have room for one token of each request. Throws Error for sizes that overflow.
EngineOptions bench_engine_options(const BenchModelArgs& args, const BenchEngineSize& size);

// With these options, without a tokenizer.
Engine load_bench_engine(const BenchModelArgs& args, const BenchEngineSize& size,
                         spdlog::logger& log);

}  // namespace sparsellm
