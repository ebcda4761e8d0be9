#include <spdlog/logger.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "kernels/base/device.h"
#include "kernels/base/dtype.h"
#include "kernels/base/error.h"
#include "tools/bench/args.h"
#include "tools/bench/commands/command.h"
#include "tools/bench/commands/layer_shapes.h"
#include "tools/bench/commands/options.h"
#include "tools/bench/commands/report.h"
#include "tools/bench/engine.h"
#include "tools/bench/kernel.h"
#include "tools/bench/list_option.h"
#include "tools/bench/tune.h"
#include "tools/cli/args.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/report.h"

namespace sparsellm {
namespace {

struct TuneArgs {
  BenchModelArgs model;
  OutputArgs output;
  std::vector<std::string> shapes;
  std::vector<int64_t> tokens = KernelBenchOptions().tokens;
  int64_t max_requests = 64;
};

void add_tune_options(CLI::App& command, TuneArgs& args) {
  add_bench_model_args(command, args.model);
  CLI::Option* const shape =
      add_list(command, "--shape", args.shapes, "Outputs x inputs of single layers, without model");
  shape->type_name("OUTxIN,...")
      ->excludes("--model")
      ->excludes("--config")
      ->excludes("--plan")
      ->excludes("--pattern")
      ->excludes("--records");
  add_list(command, "--tokens", args.tokens, "Rows of the activations of single layers")
      ->check(is_count())
      ->needs(shape)
      ->capture_default_str();
  command.add_option("--parallel", args.max_requests, "Requests that a model serves at a time")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 16))
      ->capture_default_str();
  add_output_args(command, args.output, OutputTokens::no);
}

// What a load of the model measures, and keeps.
void tune_model(const TuneArgs& args, spdlog::logger& log, ReportWriter& report) {
  const int64_t context = std::min<int64_t>(read_bench_config(args.model).max_positions, 256);
  const Engine engine = load_bench_engine(
      args.model, {.max_requests = args.max_requests, .context_size = context}, log);
  report.begin_table("tune", tune_columns());
  report.add_row({args.model.config.empty() ? args.model.model.model : args.model.config,
                  engine.stats().tuned_choices,
                  engine.stats().load_seconds - engine.stats().weight_seconds});
}

class TuneCommand : public BenchCommand {
 public:
  explicit TuneCommand(CLI::App& app)
      : BenchCommand(app, "tune", "Measures which kernels are fastest, for later loads to use") {
    add_tune_options(subcommand(), args_);
  }

  void run(const std::vector<std::string>& command_line) override;

 private:
  TuneArgs args_;
};

void TuneCommand::run(const std::vector<std::string>& command_line) {
  const Device device = parse_device(args_.model.model.device);
  const auto log = make_log(kTool, args_.model.model);
  warn_about_device(args_.model.model.device, *log);
  catch_interrupts();
  if (args_.shapes.empty()) {
    check_bench_model_args(args_.model);
  }
  require(device.is_cuda(), "there is nothing to tune on {}", to_string(device));
  require(args_.model.model.tunes && !engine_options(args_.model.model, {}).tune_cache.empty(),
          "there is no file to keep the choices in; give --tune-cache FILE");
  Environment environment = describe_model_environment(args_.model, command_line);
  with_report(args_.output, std::move(environment), [&](ReportWriter& report) {
    if (args_.shapes.empty()) {
      tune_model(args_, *log, report);
      return;
    }
    const EngineOptions engine = engine_options(args_.model.model, {});
    tune_shapes({.shapes = parse_layer_shapes(args_.shapes),
                 .tokens = args_.tokens,
                 .dtype = engine.dtype.value_or(DType::f16),
                 .device = device,
                 .cache = engine.tune_cache,
                 .seed = args_.model.seed},
                report);
  });
}

}  // namespace

std::unique_ptr<BenchCommand> add_tune_command(CLI::App& app) {
  return std::make_unique<TuneCommand>(app);
}

}  // namespace sparsellm
