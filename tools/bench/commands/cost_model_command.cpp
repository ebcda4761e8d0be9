#include <CLI/CLI.hpp>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/device.h"
#include "tools/bench/args.h"
#include "tools/bench/commands/command.h"
#include "tools/bench/commands/options.h"
#include "tools/bench/commands/report.h"
#include "tools/bench/cost_model.h"
#include "tools/bench/environment.h"
#include "tools/bench/list_option.h"
#include "tools/bench/matrix_args.h"
#include "tools/bench/matrix_list.h"
#include "tools/bench/matrix_source.h"
#include "tools/cli/args.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/report.h"

namespace sparsellm {
namespace {

struct CostModelArgs {
  CostModelOptions options;
  OutputArgs output;
  std::string device = "cuda";
  std::vector<std::string> lists;
  std::string order;
  std::vector<std::string> dtypes;
  bool exhaustive = false;
};

void add_cost_model_options(CLI::App& command, CostModelArgs& args) {
  CostModelOptions& options = args.options;
  add_list(command, "--matrices", args.lists,
           "Lists of random matrices, such as configs/cost_models/matrices.json")
      ->required()
      ->check(not_empty())
      ->type_name("FILE.json,...");
  command.add_option("--device", args.device, "cuda or cuda:N")->capture_default_str();
  add_list(command, "--dtype", args.dtypes, "Of the matrices: f32, f16, bf16 [f32]")
      ->check(CLI::IsMember({"f16", "bf16", "f32"}));
  add_list(command, "--tokens", options.columns, "Columns of B")
      ->check(is_count())
      ->capture_default_str();
  command.add_option("--order", args.order, "How B and C lie: rows, columns or both [rows]")
      ->check(CLI::IsMember({"rows", "columns", "both"}));
  CLI::Option* const best =
      command
          .add_option("--plans", options.best_plans,
                      "Plans of each product that are measured, the model's best first")
          ->check(CLI::Range(int64_t{0}, int64_t{1} << 20))
          ->capture_default_str();
  CLI::Option* const random =
      command.add_option("--random-plans", options.random_plans, "Others, drawn at random")
          ->check(CLI::Range(int64_t{0}, int64_t{1} << 20))
          ->capture_default_str();
  command.add_flag("--exhaustive", args.exhaustive, "All plans of the search")
      ->excludes(best)
      ->excludes(random);
  CLI::Option* const model = command
                                 .add_option("--cost-model", options.model,
                                             "The model, in place of the one that is built in")
                                 ->type_name("FILE.json")
                                 ->check(not_empty());
  CLI::Option* const write =
      command.add_option("--write", options.write, "A model that is fitted to all of these times")
          ->type_name("FILE.json")
          ->check(not_empty());
  add_kernel_cache(command, options.kernels.directory);
  add_list(command, "--samples", options.samples,
           "Times from earlier reports in jsonl, in place of measurements")
      ->type_name("FILE.jsonl,...")
      ->check(not_empty())
      ->needs(write)
      ->excludes(model);
  add_seed(command, options.seed, "Seed of the plans that are drawn");
  add_output_args(command, args.output, OutputTokens::no);
}

class CostModelCommand : public BenchCommand {
 public:
  explicit CostModelCommand(CLI::App& app)
      : BenchCommand(
            app, "cost-model",
            "How well general_sparse predicts the times of generated kernels, or a new fit") {
    add_cost_model_options(subcommand(), args_);
  }

  void run(const std::vector<std::string>& command_line) override;

 private:
  CostModelArgs args_;
};

void CostModelCommand::run(const std::vector<std::string>& command_line) {
  CostModelOptions options = args_.options;
  for (const std::string& list : args_.lists) {
    std::vector<MatrixSource> listed = read_matrix_list(list);
    options.matrices.insert(options.matrices.end(), std::make_move_iterator(listed.begin()),
                            std::make_move_iterator(listed.end()));
  }
  options.orders = matrix_orders({.order = args_.order});
  if (!args_.dtypes.empty()) {
    options.dtypes.clear();
    for (const std::string& dtype : args_.dtypes) {
      options.dtypes.push_back(dtype_named(dtype));
    }
  }
  if (args_.exhaustive) {
    options.best_plans = std::numeric_limits<int64_t>::max();
  }
  options.device = options.samples.empty() ? parse_device(args_.device) : Device();
  options.kernels.warn = warnings_to_stderr();
  catch_interrupts();
  with_report(args_.output, describe_environment(options.device, command_line),
              [&](ReportWriter& report) { report_cost_model(options, report); });
}

}  // namespace

std::unique_ptr<BenchCommand> add_cost_model_command(CLI::App& app) {
  return std::make_unique<CostModelCommand>(app);
}

}  // namespace sparsellm
