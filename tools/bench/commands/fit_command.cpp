#include <spdlog/logger.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/memory_fit.h"
#include "kernels/base/error.h"
#include "models/storage/model_directory.h"
#include "models/weights/checkpoint_loader.h"
#include "models/weights/weight_store.h"
#include "tools/bench/args.h"
#include "tools/bench/commands/command.h"
#include "tools/bench/commands/options.h"
#include "tools/bench/engine.h"
#include "tools/cli/args.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/memory_report.h"
#include "tools/cli/progress_bar.h"
#include "tools/cli/rank_args.h"
#include "tools/cli/tool_main.h"

namespace sparsellm {
namespace {

struct FitArgs {
  BenchModelArgs model;
  int64_t batch = 1;
  int64_t prompt = 64;
  int64_t output = 512;
  bool json = false;
};

MemoryFit fit_of(const FitArgs& args, const ModelConfig& config, EngineOptions& options) {
  if (!args.model.config.empty()) {
    RandomWeights random = random_weights(args.model, options);
    const DType dtype = random.dtype;
    return fit_memory(config, dtype, options, {.random = std::move(random)});
  }
  const Checkpoint checkpoint(open_model_directory(args.model.model.model));
  const WeightStore store(checkpoint);
  ProgressBar bar("encoding", !args.model.model.quiet);
  options.progress = show_in(bar);
  return fit_memory(config, weight_dtype(checkpoint, options.device, options.dtype), options,
                    {.store = &store});
}

class FitCommand : public BenchCommand {
 public:
  explicit FitCommand(CLI::App& app)
      : BenchCommand(app, "fit",
                     "Says what a model would take on GPUs of --gpu-memory, which need not be "
                     "there, and whether it fits") {
    add_bench_model_args(subcommand(), args_.model);
    subcommand().remove_option(subcommand().get_option("--device"));
    add_degree_arg(subcommand(), "--tensor-parallel", args_.model.model.ranks.degree,
                   "GPUs that share the model");
    subcommand()
        .add_option("--batch", args_.batch, "Requests at a time")
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 16))
        ->capture_default_str();
    for (const auto& [flag, tokens, what] :
         {std::tuple("--prompt", &args_.prompt, "Tokens of a prompt"),
          std::tuple("--output", &args_.output, "Tokens generated for it")}) {
      subcommand().add_option(flag, *tokens, what)->check(is_count())->capture_default_str();
    }
    subcommand().add_flag("--json", args_.json, "As one object");
  }

  void run(const std::vector<std::string>& command_line) override;

 private:
  FitArgs args_;
};

void FitCommand::run(const std::vector<std::string>&) {
  catch_interrupts();
  check_bench_model_args(args_.model);
  if (args_.model.gpu_memory == 0) {
    throw UsageError("fit: how much memory has each GPU? Give --gpu-memory, e.g. 24G");
  }
  const ModelConfig config = read_bench_config(args_.model);
  args_.model.model.on_planned_gpus = true;
  EngineOptions options = bench_engine_options(
      args_.model,
      {.max_requests = args_.batch,
       .prompt = args_.prompt,
       .context_size = checked_add(args_.prompt, args_.output, "tokens of a request")});
  const MemoryFit fit = fit_of(args_, config, options);
  std::cout << (args_.json ? fit_json(config, options, fit) : fit_table(config, options, fit))
            << std::flush;
  require(std::cout.good(), "cannot write to standard output");
}

}  // namespace

std::unique_ptr<BenchCommand> add_fit_command(CLI::App& app) {
  return std::make_unique<FitCommand>(app);
}

}  // namespace sparsellm
