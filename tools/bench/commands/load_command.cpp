#include <spdlog/logger.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/device.h"
#include "tools/bench/args.h"
#include "tools/bench/commands/command.h"
#include "tools/bench/commands/options.h"
#include "tools/bench/commands/report.h"
#include "tools/bench/environment.h"
#include "tools/bench/load.h"
#include "tools/cli/args.h"
#include "tools/cli/report.h"

namespace sparsellm {
namespace {

struct LoadArgs {
  ModelArgs model;
  OutputArgs output;
  int64_t repeats = 3;
};

void add_load_options(CLI::App& command, LoadArgs& args) {
  add_model_args(command, args.model);
  command.add_option("--repeat", args.repeats, "Measured loads")
      ->check(is_count())
      ->capture_default_str();
  add_output_args(command, args.output, OutputTokens::no);
}

class LoadCommand : public BenchCommand {
 public:
  explicit LoadCommand(CLI::App& app)
      : BenchCommand(app, "load", "How fast the weights of a checkpoint come to the GPU") {
    add_load_options(subcommand(), args_);
  }

  void run(const std::vector<std::string>& command_line) override;

 private:
  LoadArgs args_;
};

void LoadCommand::run(const std::vector<std::string>& command_line) {
  const auto log = make_log(kTool, args_.model);
  warn_about_device(args_.model.device, *log);
  with_report(args_.output, describe_environment(parse_device(args_.model.device), command_line),
              [&](ReportWriter& report) { bench_load(args_.model, args_.repeats, *log, report); });
}

}  // namespace

std::unique_ptr<BenchCommand> add_load_command(CLI::App& app) {
  return std::make_unique<LoadCommand>(app);
}

}  // namespace sparsellm
