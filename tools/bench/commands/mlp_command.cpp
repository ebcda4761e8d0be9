#include <spdlog/fmt/ranges.h>
#include <spdlog/logger.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/cpu_isa.h"
#include "kernels/base/device.h"
#include "models/activation_sparsity.h"
#include "sparse/activation/votes.h"
#include "tools/bench/args.h"
#include "tools/bench/commands/command.h"
#include "tools/bench/commands/options.h"
#include "tools/bench/commands/report.h"
#include "tools/bench/environment.h"
#include "tools/bench/list_option.h"
#include "tools/bench/mlp.h"
#include "tools/bench/mlp_weights.h"
#include "tools/cli/args.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/report.h"
#include "tools/cli/tool_main.h"

namespace sparsellm {
namespace {

struct MlpArgs {
  std::vector<std::string> shapes;
  std::string device = "auto";
  std::string dtype = "f16";
  std::string votes{name_of(MlpBenchOptions().votes)};
  OutputArgs output;
  MlpBenchOptions options;
  int64_t copies_mib = MlpBenchOptions().rotation_bytes >> 20;
  std::string cpu_isa = "auto";
};

void add_mlp_options(CLI::App& command, MlpArgs& args) {
  MlpBenchOptions& options = args.options;
  std::vector<std::string> shapes;
  for (const MlpShape& shape : options.shapes) {
    shapes.push_back(to_string(shape));
  }
  CLI::Option* const shape =
      add_list(command, "--shape", args.shapes,
               fmt::format("Neurons x inputs of the MLPs, which have a gate, or with :plain none "
                           "[{}]",
                           fmt::join(shapes, ",")));
  shape->type_name("NxM[:plain],...");
  CLI::Option* const tokens =
      add_list(command, "--tokens", options.tokens, "Rows of the activations")
          ->check(CLI::Range(int64_t{1}, int64_t{1} << 10))
          ->capture_default_str();
  command
      .add_option("--predicted", options.shares.predicted,
                  "Share of the neurons of a token that is predicted to be zero, by the choice of "
                  "alpha")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command
      .add_option("--zeros", options.shares.zeros,
                  "Share that is zero, with what is predicted, by the threshold of FATReLU")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  CLI::Option* const votes =
      command
          .add_option(
              "--votes", args.votes,
              "What a vote of the prediction counts: sign, one each; weighted, the size of the "
              "input")
          ->check(CLI::IsMember({"sign", "weighted"}))
          ->capture_default_str();
  command
      .add_flag("--ablation", options.ablation,
                "The MLP as SparseInfer has it, without and with its ideas, beside ours: of MLPs "
                "with a gate, for one token, with sign votes, on CUDA")
      ->excludes(tokens)
      ->excludes(votes);
  command.add_option("--device", args.device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  add_dtype(command, args.dtype, "Of the weights: f16 or bf16");
  add_output_args(command, args.output, OutputTokens::no);
  add_seed(command, options.seed, "Seed of the random weights and tokens");
  command.add_option("--repeat", options.repeat, "Timed calls of each")
      ->check(is_count())
      ->capture_default_str();
  add_threads(command, options.threads);
  add_cpu_isa_arg(command, args.cpu_isa);
  add_copies(command, args.copies_mib);
}

class MlpCommand : public BenchCommand {
 public:
  explicit MlpCommand(CLI::App& app)
      : BenchCommand(
            app, "mlp",
            "Time of an MLP whose neurons are predicted to be zero, of its parts, and dense") {
    add_mlp_options(subcommand(), args_);
  }

  void run(const std::vector<std::string>& command_line) override;

 private:
  MlpArgs args_;
};

void MlpCommand::run(const std::vector<std::string>& command_line) {
  MlpBenchOptions options = args_.options;
  if (!args_.shapes.empty()) {
    options.shapes.clear();
    for (const std::string& text : args_.shapes) {
      options.shapes.push_back(parse_mlp_shape("--shape", text));
    }
  }
  options.dtype = dtype_named(args_.dtype);
  options.votes = args_.votes == name_of(Votes::sign) ? Votes::sign : Votes::weighted;
  if (options.ablation) {
    options.tokens = {1};
    options.votes = Votes::sign;
    if (args_.shapes.empty()) {
      std::erase_if(options.shapes, [](const MlpShape& shape) { return !shape.gated; });
    }
  }
  if (options.shares.predicted > options.shares.zeros) {
    throw UsageError(
        fmt::format("--predicted {} is more than --zeros {}; what is predicted counts as zero",
                    options.shares.predicted, options.shares.zeros));
  }
  check_options(options);  // what can be refused is refused before anything is measured
  warn_about_device(args_.device, *make_log(kTool, {}));
  options.device = parse_device(args_.device);
  if (options.ablation) {
    check_ablation(options);
  }
  options.cpu_isa = parse_cpu_isa(args_.cpu_isa);
  options.rotation_bytes = args_.copies_mib << 20;
  catch_interrupts();
  Environment environment = describe_environment(options.device, command_line, options.cpu_isa);
  environment.push_back(dtype_property(options.dtype));
  environment.push_back(verdict_property());
  with_report(args_.output, std::move(environment),
              [&](ReportWriter& report) { report_mlps(options, report); });
}

}  // namespace

std::unique_ptr<BenchCommand> add_mlp_command(CLI::App& app) {
  return std::make_unique<MlpCommand>(app);
}

}  // namespace sparsellm
