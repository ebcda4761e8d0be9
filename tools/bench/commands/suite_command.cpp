#include <spdlog/fmt/fmt.h>
#include <spdlog/logger.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "kernels/base/device.h"
#include "kernels/base/error.h"
#include "kernels/base/json_writer.h"
#include "tools/bench/args.h"
#include "tools/bench/commands/command.h"
#include "tools/bench/commands/options.h"
#include "tools/bench/commands/report.h"
#include "tools/bench/environment.h"
#include "tools/bench/list_option.h"
#include "tools/bench/suite/suite_file.h"
#include "tools/bench/suite/suite_plan.h"
#include "tools/bench/suite/suite_results.h"
#include "tools/bench/suite/suite_run.h"
#include "tools/cli/args.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/rank_args.h"
#include "tools/cli/tool_main.h"

namespace sparsellm {
namespace {

struct SuiteArgs {
  std::vector<std::string> files;
  std::string results;
  ModelArgs model;
  bool list = false;
  bool all_formats = false;
  bool resume = false;
  std::string resume_from;
  std::vector<std::string> only;
  std::string budget;
  std::string gpu_memory;
  std::optional<int> gpus;
  int64_t repeats = 1;
  double gpu_memory_utilization = SuiteMachine().gpu_memory_utilization;
};

// Seconds of "90", "90s", "9m" or "2h". Throws UsageError.
double parse_duration(const std::string& text) {
  double seconds = 0.0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, seconds);
  const std::string_view unit(rest, static_cast<size_t>(end - rest));
  const double factor = unit.empty() || unit == "s" ? 1.0
                        : unit == "m"               ? 60.0
                        : unit == "h"               ? 3600.0
                                                    : 0.0;
  if (error != std::errc() || !(seconds > 0.0) || factor == 0.0 || seconds > 1e9) {
    throw UsageError(fmt::format("--budget \"{}\"; expected a time, such as 90s, 9m or 2h", text));
  }
  return seconds * factor;
}

void add_suite_options(CLI::App& command, SuiteArgs& args) {
  command
      .add_option("files", args.files, "Suites, such as configs/benchmarks/flash_llm_fig13.json")
      ->required()
      ->type_name("FILE");
  command.add_option("--results", args.results, "Folder that gets results.jsonl")->type_name("DIR");
  command.add_flag(
      "--list", args.list,
      "Say of each cell whether it runs, is done, fits, and how long it takes; nothing "
      "is measured");
  add_list(command, "--only", args.only, "Cells whose SUITE/NAME matches one of these patterns")
      ->type_name("GLOB,...");
  command.add_flag("--all-formats", args.all_formats, "Beside the formats of a suite all others");
  command.add_flag("--resume", args.resume,
                   "Leave out what this commit has measured on such a GPU");
  command
      .add_option("--resume-from", args.resume_from, "Leave out what this commit has measured, too")
      ->check(not_empty())
      ->type_name("COMMIT");
  command
      .add_option("--budget", args.budget,
                  "Begin nothing that is not expected to end within this time, e.g. 9m")
      ->type_name("TIME");
  command.add_option("--repeat", args.repeats, "Measured runs of each batch")
      ->check(is_count())
      ->capture_default_str();
  command
      .add_option("--gpu-memory", args.gpu_memory,
                  "As if each GPU had so much memory, e.g. 24G; with --list none need be there")
      ->type_name("SIZE");
  command.add_option("--gpus", args.gpus, "As if there were so many GPUs [those that there are]")
      ->check(CLI::Range(1, 64));
  command
      .add_option("--gpu-memory-utilization", args.gpu_memory_utilization,
                  "Share of each GPU's memory to take at most")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str();
  command.add_option("--device", args.model.device, "auto, cpu, cuda or cuda:N")
      ->capture_default_str();
  add_threads(command, args.model.threads);
  command.add_option("--tune-cache", args.model.tune_cache, "File of measured choices of kernels")
      ->type_name("FILE");
  command.add_flag("-q,--quiet", args.model.quiet, "Errors only");
  command.add_flag("-v,--verbose", args.model.verbose, "Say what is chosen");
}

// A property of the environment, as text.
std::string property(const Environment& environment, std::string_view key) {
  for (const Property& each : environment) {
    if (each.key == key && std::holds_alternative<std::string>(each.value)) {
      return std::get<std::string>(each.value);
    }
  }
  return {};
}

std::string json_of(const Environment& environment) {
  JsonWriter json;
  json.object();
  for (const Property& each : environment) {
    if (const auto* const text = std::get_if<std::string>(&each.value)) {
      json.member(each.key, *text);
    } else if (const auto* const whole = std::get_if<int64_t>(&each.value)) {
      json.member(each.key, *whole);
    } else if (const auto* const number = std::get_if<double>(&each.value)) {
      json.member(each.key, *number);
    }
  }
  json.end();
  return std::move(json).text();
}

void print_plan(const std::vector<PlannedCell>& plan) {
  double seconds = 0.0;
  std::string load;
  for (const PlannedCell& planned : plan) {
    const std::string name = planned.suite->name + "/" + planned.cell->name;
    if (planned.state == SuiteState::runs) {
      seconds += planned.seconds;
      const std::string of = planned.suite->name + "/" + planned.cell->load;
      seconds += of == load ? 0.0 : planned.loading;
      load = of;
      const std::string memory =
          planned.fit.needed > 0 ? fmt::format(", {:.1f} GB", planned.fit.needed * 1e-9) : "";
      std::cout << fmt::format("{}: runs{}, about {:.0f} s\n", name, memory, planned.seconds);
    } else {
      std::cout << fmt::format("{}: {}\n", name, planned.text());
    }
  }
  std::cout << fmt::format("{} of {} cells run, about {:.0f} min\n",
                           std::ranges::count(plan, SuiteState::runs, &PlannedCell::state),
                           plan.size(), seconds / 60.0)
            << std::flush;
  require(std::cout.good(), "cannot write to standard output");
}

class SuiteCommand : public BenchCommand {
 public:
  explicit SuiteCommand(CLI::App& app)
      : BenchCommand(app, "suite", "Figures and tables of papers, cell by cell") {
    add_suite_options(subcommand(), args_);
  }

  void run(const std::vector<std::string>& command_line) override;

 private:
  SuiteMachine machine() const;

  SuiteArgs args_;
};

SuiteMachine SuiteCommand::machine() const {
  SuiteMachine machine{.model = args_.model,
                       .gpu_memory_utilization = args_.gpu_memory_utilization};
  if (!args_.gpu_memory.empty()) {
    machine.gpu_memory = parse_size("--gpu-memory", args_.gpu_memory);
  }
  if (args_.list && machine.gpu_memory > 0) {
    machine.model.on_planned_gpus = true;
    machine.gpus = args_.gpus.value_or(1);
    return machine;
  }
  const Device device = device_of(args_.model);
  if (device.is_cuda()) {
    machine.gpu_memory_here = device_memory(device).total;
    machine.gpus = std::min(args_.gpus.value_or(64), cuda_device_count() - device.index);
  } else if (machine.gpu_memory > 0) {
    throw UsageError("--gpu-memory is for GPUs, or for --list");
  }
  return machine;
}

void SuiteCommand::run(const std::vector<std::string>& command_line) {
  if (args_.results.empty() && (!args_.list || args_.resume || !args_.resume_from.empty())) {
    throw UsageError("suite: where do results go, or come from? Give --results DIR");
  }
  catch_interrupts();
  std::vector<Suite> suites;
  for (const std::string& file : args_.files) {
    suites.push_back(read_suite(file, suite_configs(file),
                                args_.all_formats ? SuiteFormats::all : SuiteFormats::listed));
  }
  SuiteRunOptions options{.repeats = args_.repeats};
  if (!args_.budget.empty()) {
    options.budget = parse_duration(args_.budget);
  }
  const SuiteMachine machine = this->machine();
  const auto log = make_log(kTool, args_.model);
  const Device device = device_of(machine.model);
  const Environment environment = describe_environment(
      device.is_planned() ? Device() : device, command_line, parse_cpu_isa(args_.model.cpu_isa));
  options.environment = json_of(environment);
  options.key = {.suite = {},
                 .cell = {},
                 .commit = property(environment, "commit"),
                 .gpu = device.is_cuda() ? property(environment, "gpu") : "cpu",
                 .gpu_memory = args_.gpu_memory};
  SuiteSelection selection{.only = args_.only, .repeats = args_.repeats};
  std::optional<SuiteResults> results;
  std::vector<SuiteResult> earlier;
  if (args_.list && !args_.results.empty()) {
    earlier = read_suite_results(args_.results);
  } else if (!args_.list) {
    results.emplace(args_.results);
    earlier = results->all();
  }
  std::vector<std::string> commits;
  if (args_.resume || !args_.resume_from.empty()) {
    commits = {options.key.commit, args_.resume_from};
  }
  selection.done = [&](const Suite& suite, const SuiteCell& cell) {
    return std::ranges::any_of(earlier, [&](const SuiteResult& result) {
      return result.error.empty() && result.key.suite == suite.name &&
             result.key.cell == cell.name && result.key.gpu == options.key.gpu &&
             result.key.gpu_memory == options.key.gpu_memory &&
             std::ranges::find(commits, result.key.commit) != commits.end();
    });
  };
  const std::vector<PlannedCell> plan = plan_suites(suites, selection, machine);
  if (args_.list) {
    print_plan(plan);
    return;
  }
  options.read_bandwidth = measure_memory_bandwidth(device);
  if (!args_.model.quiet) {
    options.say = [](const std::string& line) {
      std::cout << line << std::endl;  // NOLINT(performance-avoid-endl): one cell may take minutes
    };
  }
  const SuiteCounts counts = run_suites(plan, machine, options, *results, *log);
  std::cout << fmt::format("{} cells measured, {} failed, {} not begun for want of time\n",
                           counts.measured, counts.failed, counts.not_begun)
            << std::flush;
}

}  // namespace

std::unique_ptr<BenchCommand> add_suite_command(CLI::App& app) {
  return std::make_unique<SuiteCommand>(app);
}

}  // namespace sparsellm
