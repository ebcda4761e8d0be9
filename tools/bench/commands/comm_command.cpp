#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/comm_layout.h"
#include "kernels/base/device.h"
#include "tools/bench/args.h"
#include "tools/bench/comm.h"
#include "tools/bench/commands/command.h"
#include "tools/bench/commands/options.h"
#include "tools/bench/commands/report.h"
#include "tools/bench/environment.h"
#include "tools/bench/list_option.h"
#include "tools/cli/args.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/report.h"
#include "tools/cli/tool_main.h"

namespace sparsellm {
namespace {

struct CommArgs {
  int64_t ranks = 2;
  std::vector<std::string> bytes{"8K",   "16K",  "32K", "64K", "128K",
                                 "256K", "512K", "1M",  "2M",  "4M"};
  std::vector<std::string> ways;
  std::vector<std::string> devices{"auto"};
  std::string dtype = "f16";
  OutputArgs output;
  CommBenchOptions options;
};

void add_comm_options(CLI::App& command, CommArgs& args) {
  command.add_option("--ranks", args.ranks, "GPUs, each with a thread of its own")
      ->check(CLI::Range(int64_t{2}, int64_t{CommLayout::kMaxRanks}))
      ->capture_default_str();
  add_list(command, "--bytes", args.bytes, "Sizes of the tensor that is summed up")
      ->capture_default_str()
      ->type_name("SIZE,...");
  std::vector<std::string> ways;
  for (const CommBenchWay& way : all_comm_ways()) {
    ways.push_back(name_of(way));
  }
  add_list(command, "--ways", args.ways, "Ways to make the sum [all]")
      ->check(CLI::IsMember(ways))
      ->type_name("NAME,...");
  add_list(command, "--device", args.devices,
           "auto: the first GPUs; or one for each rank: cuda:2,cuda:3")
      ->capture_default_str();
  command.add_option("--dtype", args.dtype, "Of the tensor: f16, bf16 or f32")
      ->check(CLI::IsMember({"f16", "bf16", "f32"}))
      ->capture_default_str();
  add_output_args(command, args.output, OutputTokens::no);
  add_seed(command, args.options.seed, "Seed of the random values that are verified");
  command.add_option("--calls", args.options.calls, "Calls in the graph that is replayed")
      ->check(CLI::Range(int64_t{1}, int64_t{10000}))
      ->capture_default_str();
  command.add_option("--repeat", args.options.repeat, "Timed replays of each")
      ->check(is_count())
      ->capture_default_str();
}

std::vector<Device> devices_of_ranks(const CommArgs& args) {
  std::vector<Device> devices;
  if (args.devices == std::vector<std::string>{"auto"}) {
    for (int rank = 0; rank < args.ranks; ++rank) {
      devices.push_back({Device::Kind::cuda, rank});
    }
    return devices;
  }
  if (std::ssize(args.devices) != args.ranks) {
    throw UsageError(
        fmt::format("--device has {} names for {} ranks", args.devices.size(), args.ranks));
  }
  for (const std::string& name : args.devices) {
    devices.push_back(parse_device(name));
  }
  return devices;
}

class CommCommand : public BenchCommand {
 public:
  explicit CommCommand(CLI::App& app)
      : BenchCommand(app, "comm", "Time of sums over several GPUs, by the way that they are made") {
    add_comm_options(subcommand(), args_);
  }

  void run(const std::vector<std::string>& command_line) override;

 private:
  CommArgs args_;
};

void CommCommand::run(const std::vector<std::string>& command_line) {
  CommBenchOptions options = args_.options;
  options.dtype = dtype_named(args_.dtype);
  for (const std::string& size : args_.bytes) {
    options.bytes.push_back(parse_size("--bytes", size));
  }
  if (!args_.ways.empty()) {
    options.ways.clear();
    for (const CommBenchWay& way : all_comm_ways()) {
      if (std::find(args_.ways.begin(), args_.ways.end(), name_of(way)) != args_.ways.end()) {
        options.ways.push_back(way);
      }
    }
  }
  check_options(options);  // what can be refused is refused before anything is measured
  options.devices = devices_of_ranks(args_);
  check_comm_devices(options);
  catch_interrupts();
  with_report(args_.output, describe_environment(options.devices.front(), command_line),
              [&](ReportWriter& report) { report_comm(options, report); });
}

}  // namespace

std::unique_ptr<BenchCommand> add_comm_command(CLI::App& app) {
  return std::make_unique<CommCommand>(app);
}

}  // namespace sparsellm
