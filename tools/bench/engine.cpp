#include "tools/bench/engine.h"

#include <spdlog/logger.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "engine/rank_process.h"
#include "kernels/base/error.h"
#include "kernels/base/mapped_file.h"
#include "models/random_plan.h"
#include "models/storage/model_directory.h"
#include "tools/bench/args.h"
#include "tools/bench/random_sparsity.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/tool_main.h"
#include "tools/cli/with_ranks.h"

namespace sparsellm {

void add_bench_model_args(CLI::App& app, BenchModelArgs& args) {
  add_model_args(app, args.model);
  CLI::Option* const model = app.get_option("--model")->required(false);
  app.add_option("--config", args.config,
                 "File in the format of config.json; the weights are random")
      ->check(not_empty())
      ->excludes(model);
  CLI::Option* const sparsity =
      app.add_option("--sparsity", args.sparsity, "Share of zeros in the random weights")
          ->check(CLI::Range(0.0, 1.0))
          ->capture_default_str();
  app.add_option("--plan", args.plan,
                 "File with a plan, as of sparsellm-convert: the zeros and the format of each "
                 "layer's random weights")
      ->type_name("FILE")
      ->check(not_empty())
      ->excludes(sparsity);
  app.add_option_function<std::string>(
         "--pattern",
         [&args](const std::string& text) { args.pattern = parse_pattern("--pattern", text); },
         "Where these zeros are: uniform, rows:S, columns:S, magnitude:S, outliers:F, "
         "dense-blocks:F or kept-blocks:RxC "
         "[uniform; by the scopes of a plan]")
      ->type_name("PATTERN");
  app.add_option("--seed", args.seed, "Seed of random weights, prompts and arrivals")
      ->check(is_seed())
      ->capture_default_str();
  app.add_option_function<std::string>(
         "--kv-memory",
         [&args](const std::string& text) { args.kv_bytes = parse_size("--kv-memory", text); },
         "Bytes of the KV cache, e.g. 512M or 8G (powers of 1024; MB of 1000) [the largest batch, "
         "as far as memory goes]")
      ->type_name("SIZE");
  app.add_option("--gpu-memory-utilization", args.gpu_memory_utilization,
                 "Share of the GPU's memory that weights, KV cache and workspace may take")
      ->check(CLI::Range(0.01, 1.0));
  add_gpu_memory_arg(app, args.gpu_memory);
  app.add_flag("--deterministic", args.deterministic,
               "The bits of a result do not depend on what else is computed");
}

void check_bench_model_args(const BenchModelArgs& args) {
  if (args.config.empty() && args.model.model.empty()) {
    throw UsageError("there is nothing to benchmark; give --config FILE or --model DIR");
  }
  if (args.config.empty() && args.sparsity != 0.0) {
    throw UsageError(
        fmt::format("--sparsity {} is for the random weights of --config", args.sparsity));
  }
  if (args.config.empty() && !args.plan.empty()) {
    throw UsageError(fmt::format("--plan {} is for the random weights of --config", args.plan));
  }
  if (args.config.empty() && args.pattern) {
    throw UsageError(fmt::format("--pattern {} is for the random weights of --config",
                                 to_string(*args.pattern)));
  }
  if (args.plan.empty() || args.model.weight_format != ModelArgs().weight_format) {
    check_model_args(args.model);  // else the plan has formats
  }
  if (args.pattern && args.plan.empty()) {
    check_pattern("--pattern", *args.pattern, args.sparsity);
  }
}

void check_bench_model(const BenchModelArgs& args) {
  read_bench_config(args);
  if (!args.plan.empty()) {
    require_possible(random_weights(args, engine_options(args.model, {})));
  }
}

std::string pattern_name(const BenchModelArgs& args) {
  if (args.config.empty()) {
    return "";
  }
  return args.plan.empty() || args.pattern ? to_string(args.pattern.value_or(ZeroPattern()))
                                           : "by plan";
}

ModelConfig read_bench_config(const BenchModelArgs& args) {
  return args.config.empty() ? read_model_config(open_model_directory(args.model.model))
                             : read_model_config_file(args.config);
}

EngineOptions bench_engine_options(const BenchModelArgs& args, const BenchEngineSize& size) {
  EngineOptions options;
  options.max_requests = size.max_requests;
  options.step_tokens = size.step_tokens;
  if (size.prompt > 0) {
    const int64_t prompts = checked_mul(size.max_requests, size.prompt, "tokens of all prompts");
    options.step_tokens = std::min(options.step_tokens, prompts);
  }
  options.step_tokens = std::max(options.step_tokens, size.max_requests);
  options.context_size = size.context_size;
  options.traces = size.traces;
  options.kv_bytes = args.kv_bytes;
  options.gpu_memory_utilization =
      args.gpu_memory_utilization.value_or(options.gpu_memory_utilization);
  options.gpu_memory = args.gpu_memory;
  options.deterministic = args.deterministic;
  options.warm_up = size.warm_up;
  options.tensor_parallel.leaves_out_sums = size.leaves_out_sums;
  options.decode_tokens = size.decode_tokens;
  options.with_tokenizer = false;
  return engine_options(args.model, std::move(options));
}

void choose_neuron_shares(BenchModelArgs& args, std::optional<double> predicted, double zeros,
                          spdlog::logger& log) {
  ActivationSparsityRequest& request = args.model.activation_sparsity;
  ThreadPool threads(args.model.threads);
  log.info("choosing alphas and thresholds for {} of the neurons predicted and {} zero",
           predicted.value_or(0.0), zeros);
  const ActivationSparsity chosen = choose_random_sparsity(
      read_bench_config(args), random_weights(args, engine_options(args.model, {})),
      {.predicted = predicted.value_or(0.0), .zeros = zeros},
      request.votes.value_or(ActivationSparsity().votes), threads);
  if (predicted) {
    request.alphas = chosen.alphas;
  }
  request.thresholds = chosen.thresholds;
}

RankModel bench_rank_model(const BenchModelArgs& args) {
  if (args.config.empty()) {
    return checkpoint_rank_model(args.model);
  }
  constexpr int64_t kMaxPlanBytes = int64_t{64} << 20;
  const std::string plan = args.plan.empty() ? "" : read_text_file(args.plan, kMaxPlanBytes);
  const std::string weights =
      fmt::format("{} {} {} {}", args.sparsity, pattern_name(args), args.seed, plan);
  return {.fingerprint = fmt::format("{}, random weights {}",
                                     config_fingerprint(read_bench_config(args), args.config),
                                     text_checksum(weights)),
          .run = [args](std::string_view rank_options, Communicator& comm) {
            const auto make = [&args](const EngineOptions& of_rank_0) {
              return random_weights(args, of_rank_0);
            };
            run_random_rank(args.config, make, own_rank_options(args.model), rank_options, comm);
          }};
}

Engine load_bench_engine(const BenchModelArgs& args, const BenchEngineSize& size,
                         spdlog::logger& log) {
  EngineOptions options = bench_engine_options(args, size);
  if (args.config.empty()) {
    return load_engine(args.model, options, log);
  }
  catch_interrupts();
  options.log = &log;
  return Engine::load_random(args.config, random_weights(args, options), options);
}

RandomWeights random_weights(const BenchModelArgs& args, const EngineOptions& options) {
  RandomWeights weights{.dtype = options.dtype.value_or(DType::f16),
                        .sparsity = args.sparsity,
                        .pattern = args.pattern.value_or(ZeroPattern()),
                        .seed = args.seed,
                        .format = options.weight_format,
                        .records = options.records};
  if (!args.plan.empty()) {
    weights.planned = plan_random_linears(SparsityPlan::read(args.plan), read_bench_config(args),
                                          {.device = options.device,
                                           .dtype = weights.dtype,
                                           .pattern = args.pattern,
                                           .format = options.weight_format,
                                           .keeps_formats = args.keeps_planned_formats,
                                           .records = options.records});
  }
  return weights;
}

}  // namespace sparsellm
