#include <spdlog/logger.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sparse/registry.h"
#include "tools/bench/args.h"
#include "tools/bench/choices.h"
#include "tools/bench/commands/command.h"
#include "tools/bench/commands/measure_layers.h"
#include "tools/bench/commands/options.h"
#include "tools/bench/commands/report.h"
#include "tools/bench/engine.h"
#include "tools/bench/layer_source.h"
#include "tools/bench/layers.h"
#include "tools/bench/list_option.h"
#include "tools/cli/args.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/rank_args.h"
#include "tools/cli/report.h"
#include "tools/cli/tool_main.h"

namespace sparsellm {
namespace {

struct LayersArgs {
  BenchModelArgs model;
  OutputArgs output;
  LayerBenchOptions options;
  int64_t copies_mib = LayerBenchOptions().rotation_bytes >> 20;
  std::optional<int> ranks;
  bool all = false;
  bool choices = false;
};

void add_layers_options(CLI::App& command, LayersArgs& args) {
  add_bench_model_args(command, args.model);
  add_degree_arg(command, "--tensor-parallel", args.ranks,
                 "The shares of these layers that rank 0 of so many has [1]");
  add_list(command, "--tokens", args.options.tokens, "Rows of the activations")
      ->check(is_count())
      ->capture_default_str();
  command.add_flag("--all", args.all,
                   "Every block; else the one in the middle stands for all that are alike");
  command.add_flag("--choices", args.choices,
                   "Only which format --weight-format auto takes for each kind of layers, and the "
                   "times that decide");
  command.add_option("--repeat", args.options.repeat, "Timed products of each")
      ->check(is_count())
      ->capture_default_str();
  add_copies(command, args.copies_mib);
  add_output_args(command, args.output, OutputTokens::no);
}

class LayersCommand : public BenchCommand {
 public:
  explicit LayersCommand(CLI::App& app)
      : BenchCommand(app, "layers",
                     "Time of each linear layer of a model, in its format and dense") {
    add_layers_options(subcommand(), args_);
  }

  void run(const std::vector<std::string>& command_line) override;

 private:
  LayersArgs args_;
};

void LayersCommand::run(const std::vector<std::string>& command_line) {
  check_bench_model_args(args_.model);
  check_bench_model(args_.model);  // what can be refused is refused before anything is measured
  if (args_.choices && args_.model.model.weight_format != kAutoFormat) {
    throw UsageError("--choices is for --weight-format auto");
  }
  const auto log = make_log(kTool, args_.model.model);
  warn_about_device(args_.model.model.device, *log);
  catch_interrupts();
  LayerBenchOptions options = args_.options;
  options.rotation_bytes = args_.copies_mib << 20;
  options.blocks = args_.all ? LayerBenchOptions::Blocks::all : LayerBenchOptions::Blocks::alike;
  // An engine whose decode steps have these numbers of tokens, one of each request.
  const BenchEngineSize size{
      .max_requests = *std::max_element(options.tokens.begin(), options.tokens.end()),
      .decode_tokens = options.tokens};
  Environment environment = describe_model_environment(args_.model, command_line);
  environment.push_back(verdict_property());
  const int ranks = args_.ranks.value_or(1);
  with_report(args_.output, std::move(environment), [&](ReportWriter& report) {
    if (args_.choices) {
      report_choices(open_layers(args_.model, size, ranks, log.get()).choices, report);
    } else {
      measure_layers(args_.model, options, size, ranks, *log, report);
    }
  });
}

}  // namespace

std::unique_ptr<BenchCommand> add_layers_command(CLI::App& app) {
  return std::make_unique<LayersCommand>(app);
}

}  // namespace sparsellm
