#include <spdlog/logger.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/attention.h"
#include "kernels/base/device.h"
#include "tools/bench/args.h"
#include "tools/bench/attention.h"
#include "tools/bench/commands/command.h"
#include "tools/bench/commands/options.h"
#include "tools/bench/commands/report.h"
#include "tools/bench/environment.h"
#include "tools/bench/list_option.h"
#include "tools/cli/args.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/report.h"

namespace sparsellm {
namespace {

struct AttentionArgs {
  std::string device = "auto";
  std::string dtype = "f16";
  OutputArgs output;
  AttentionBenchOptions options;
};

void add_attention_options(CLI::App& command, AttentionArgs& args) {
  AttentionBenchOptions& options = args.options;
  command.add_flag("--prefill", options.prefill,
                   "Rows for all tokens of the context; else the step that decodes the last one");
  add_list(command, "--requests", options.requests, "Requests of a call")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 16))
      ->capture_default_str();
  add_list(command, "--context", options.contexts, "Tokens of each request")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  command.add_option("--window", options.window, "Tokens that a row sees, up to its own [all]")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  const CLI::Range heads(int64_t{1}, int64_t{1} << 10);
  command.add_option("--heads", options.heads, "Query heads")->check(heads)->capture_default_str();
  command.add_option("--kv-heads", options.kv_heads, "Key/value heads, which query heads share")
      ->check(heads)
      ->capture_default_str();
  command.add_option("--head-dim", options.head_dim, "Elements of a head")
      ->check(CLI::Range(int64_t{8}, kMaxHeadDim))
      ->capture_default_str();
  command.add_option("--device", args.device, "auto, cuda or cuda:N")->capture_default_str();
  add_dtype(command, args.dtype, "Of queries, keys and values: f16 or bf16");
  add_output_args(command, args.output, OutputTokens::no);
  add_seed(command, options.seed, "Seed of the random operands");
  command.add_option("--repeat", options.repeat, "Timed replays of each")
      ->check(is_count())
      ->capture_default_str();
}

class AttentionCommand : public BenchCommand {
 public:
  explicit AttentionCommand(CLI::App& app)
      : BenchCommand(app, "attention", "Time of attention over paged keys and values by itself") {
    add_attention_options(subcommand(), args_);
  }

  void run(const std::vector<std::string>& command_line) override;

 private:
  AttentionArgs args_;
};

void AttentionCommand::run(const std::vector<std::string>& command_line) {
  AttentionBenchOptions options = args_.options;
  options.dtype = dtype_named(args_.dtype);
  check_options(options);  // what can be refused is refused before anything is measured
  warn_about_device(args_.device, *make_log(kTool, {}));
  options.device = parse_device(args_.device);
  check_attention_device(options.device);
  catch_interrupts();
  Environment environment = describe_environment(options.device, command_line);
  options.read_bandwidth = measure_memory_bandwidth(options.device);
  environment.push_back(read_bandwidth_property(options.read_bandwidth));
  with_report(args_.output, std::move(environment),
              [&](ReportWriter& report) { report_attention(options, report); });
}

}  // namespace

std::unique_ptr<BenchCommand> add_attention_command(CLI::App& app) {
  return std::make_unique<AttentionCommand>(app);
}

}  // namespace sparsellm
