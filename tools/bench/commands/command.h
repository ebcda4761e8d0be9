#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tools/cli/cli_fwd.h"

namespace sparsellm {

inline constexpr char kTool[] = "sparsellm-bench";

// A subcommand of sparsellm-bench. It owns what its options are parsed into.
class BenchCommand {
 public:
  virtual ~BenchCommand() = default;
  BenchCommand(const BenchCommand&) = delete;
  BenchCommand& operator=(const BenchCommand&) = delete;

  bool parsed() const;  // whether the command line has it

  // Measures, with a report on stdout. `command_line`: of the program, for the head of the report.
  // Throws UsageError, Error and Interrupted.
  virtual void run(const std::vector<std::string>& command_line) = 0;

 protected:
  // A subcommand of `app` that has no options yet.
  BenchCommand(CLI::App& app, const std::string& name, const std::string& description);

  CLI::App& subcommand() { return *subcommand_; }

 private:
  CLI::App* subcommand_;  // of the app
};

// Each adds its subcommand, with all options, to `app`. The app and the command refer to each
// other: both have to be there as long as one of them is used.
std::unique_ptr<BenchCommand> add_throughput_command(CLI::App& app);
std::unique_ptr<BenchCommand> add_kernel_command(CLI::App& app);
std::unique_ptr<BenchCommand> add_mlp_command(CLI::App& app);
std::unique_ptr<BenchCommand> add_attention_command(CLI::App& app);
std::unique_ptr<BenchCommand> add_comm_command(CLI::App& app);
std::unique_ptr<BenchCommand> add_layers_command(CLI::App& app);
std::unique_ptr<BenchCommand> add_load_command(CLI::App& app);
std::unique_ptr<BenchCommand> add_fit_command(CLI::App& app);
std::unique_ptr<BenchCommand> add_suite_command(CLI::App& app);
std::unique_ptr<BenchCommand> add_tune_command(CLI::App& app);
std::unique_ptr<BenchCommand> add_cost_model_command(CLI::App& app);

}  // namespace sparsellm
