// Measures speed: sparsellm-bench throughput --config FILE | --model DIR,
//                 sparsellm-bench kernel --shape OUTxIN,... | --config FILE ...,
//                 sparsellm-bench kernel --matrix FILE.mtx ... | --class CLASS,... | --matrices
//                 FILE, sparsellm-bench mlp [--shape NEURONSxHIDDEN[:plain],...] ...,
//                 sparsellm-bench attention [--prefill] ...,
//                 sparsellm-bench comm --ranks N ...,
//                 sparsellm-bench layers --config FILE | --model DIR,
//                 sparsellm-bench load --model DIR,
//                 sparsellm-bench tune --config FILE | --model DIR | --shape OUTxIN,...

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "tools/bench/commands/command.h"
#include "tools/cli/tool_main.h"

namespace sparsellm {
namespace {

// In the order of the help.
std::vector<std::unique_ptr<BenchCommand>> add_commands(CLI::App& app) {
  std::vector<std::unique_ptr<BenchCommand>> commands;
  for (const auto add :
       {add_throughput_command, add_kernel_command, add_mlp_command, add_attention_command,
        add_comm_command, add_layers_command, add_load_command, add_fit_command, add_suite_command,
        add_tune_command, add_cost_model_command}) {
    commands.push_back(add(app));
  }
  return commands;
}

BenchCommand& parsed_command(const std::vector<std::unique_ptr<BenchCommand>>& commands) {
  for (const std::unique_ptr<BenchCommand>& command : commands) {
    if (command->parsed()) {
      return *command;
    }
  }
  throw UsageError(
      "a subcommand is missing: throughput, kernel, mlp, attention, comm, layers, load, fit, "
      "suite, tune or cost-model");
}

}  // namespace
}  // namespace sparsellm

int main(int argc, char** argv) {
  CLI::App app("Measures the speed of language models and of their parts.", sparsellm::kTool);
  app.require_subcommand(0, 1);  // a wrong one is named before it is said that one is missing
  const auto commands = sparsellm::add_commands(app);
  const std::vector<std::string> command_line(argv, argv + argc);
  return sparsellm::tool_main(app, argc, argv,
                              [&] { sparsellm::parsed_command(commands).run(command_line); });
}
