#include <spdlog/fmt/fmt.h>
#include <spdlog/logger.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "kernels/base/device.h"
#include "kernels/base/error.h"
#include "kernels/base/parallel.h"
#include "kernels/base/token_buckets.h"
#include "models/activation_sparsity.h"
#include "models/format_choice.h"
#include "tools/bench/args.h"
#include "tools/bench/arrivals.h"
#include "tools/bench/choices.h"
#include "tools/bench/commands/command.h"
#include "tools/bench/commands/measure_layers.h"
#include "tools/bench/commands/measure_server.h"
#include "tools/bench/commands/progress.h"
#include "tools/bench/commands/report.h"
#include "tools/bench/commands/throughput_args.h"
#include "tools/bench/engine.h"
#include "tools/bench/layer_source.h"
#include "tools/bench/layers.h"
#include "tools/bench/requests.h"
#include "tools/bench/throughput.h"
#include "tools/cli/args.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/report.h"
#include "tools/cli/tool_main.h"
#include "tools/cli/with_ranks.h"

namespace sparsellm {
namespace {

// Of the report by layer after a run: more than the caches of the cores, and no more than is copied
// quickly.
constexpr int64_t kCpuRotationBytes = int64_t{32} << 20;

// Tokens that every request has.
int64_t fixed_length(const char* flag, const LengthRange& range) {
  if (!range.is_fixed()) {
    throw UsageError(
        fmt::format("{} {}:{} is a range, which needs --arrivals", flag, range.min, range.max));
  }
  return range.min;
}

bool shows_layers(const ThroughputArgs& args) {
  return args.layers ? *args.layers : may_be_sparse(args.model);
}

// After a run of an engine of this size, if it is wanted; for the buckets of tokens that it decodes
// in.
void measure_layers_of_run(const ThroughputArgs& args, const BenchEngineSize& size,
                           spdlog::logger& log, ReportWriter& report) {
  if (shows_layers(args)) {
    std::set<int64_t> buckets;
    for (const int64_t batch : size.decode_tokens) {
      buckets.insert(token_bucket(batch));
    }
    LayerBenchOptions options;
    options.tokens.assign(buckets.begin(), buckets.end());
    if (!device_of(args.model.model).is_cuda()) {
      options.rotation_bytes = kCpuRotationBytes;
    }
    measure_layers(args.model, std::move(options), size, args.model.model.ranks.ranks(), log,
                   report);
  }
}

void report_choices_of_run(const std::vector<FormatChoice>& choices, ReportWriter& report) {
  if (!choices.empty()) {
    report_choices(choices, report);
  }
}

void measure_batches(const ThroughputArgs& args, const LengthRange& output, Environment environment,
                     spdlog::logger& log) {
  ThroughputOptions options;
  options.batches = args.batches;
  options.prompt = fixed_length("--prompt", args.prompt);
  options.output = fixed_length("--output", output);
  options.step_tokens = args.step_tokens.value_or(options.step_tokens);
  options.repeats = args.repeats;
  options.seed = args.model.seed;
  options.adjusted_every = args.adjusted_every;
  options.scores_prompts = args.scores_prompts;
  options.pattern = pattern_name(args.model);
  const Device device = device_of(args.model.model);
  options.device = device;
  options.ranks = args.model.model.ranks.ranks();
  if (args.breakdown) {
    require(device.is_cuda(), "--breakdown: the parts of a step are measured on CUDA alone");
    options.breakdown = [](const Engine& engine) { return engine.decode_seconds(); };
  }
  // Before the model takes the memory.
  options.read_bandwidth = measure_memory_bandwidth(device);
  environment.push_back(read_bandwidth_property(options.read_bandwidth));
  std::vector<FormatChoice> choices;
  BenchEngineSize size{.max_requests = 0,
                       .prompt = options.prompt,
                       .step_tokens = options.step_tokens,
                       .context_size = options.prompt + options.output,
                       .traces = args.breakdown,
                       .warm_up = args.warm_up,
                       .leaves_out_sums = args.no_sums,
                       .decode_tokens = args.batches};
  const LoadEngine load = [&](int64_t max_requests) {
    size.max_requests = max_requests;
    Engine engine = load_bench_engine(args.model, size, log);
    choices = engine.format_choices();
    return engine;
  };
  with_report(args.output, std::move(environment), [&](ReportWriter& report) {
    BenchProgress progress("measuring", "steps", !args.model.model.quiet);
    options.progress = std::ref(progress);
    bench_throughput(options, load, report);
    report_choices_of_run(choices, report);
    measure_layers_of_run(args, size, log, report);
  });
}

void serve_arrivals(const ThroughputArgs& args, ArrivalOptions options, const BenchEngineSize& size,
                    spdlog::logger& log, ReportWriter& report) {
  Engine engine = load_bench_engine(args.model, size, log);
  BenchProgress progress("serving", "requests", !args.model.model.quiet);
  options.progress = std::ref(progress);
  bench_arrivals(engine, options, report);
  report_choices_of_run(engine.format_choices(), report);
}

void measure_arrivals(const ThroughputArgs& args, const LengthRange& output,
                      Environment environment, spdlog::logger& log) {
  ArrivalOptions options;
  options.rate = *args.arrival_rate;
  options.requests = args.requests;
  options.prompt = args.prompt;
  options.output = output;
  options.seed = args.model.seed;
  options.pattern = pattern_name(args.model);
  options.device = device_of(args.model.model);
  options.ranks = args.model.model.ranks.ranks();
  const int64_t most = *std::max_element(args.batches.begin(), args.batches.end());
  const BenchEngineSize size{
      .max_requests = most,
      .prompt = options.prompt.max,
      .step_tokens = args.step_tokens.value_or(BenchEngineSize().step_tokens),
      .context_size = options.prompt.max + options.output.max,
      .warm_up = args.warm_up,
      .decode_tokens = {most}};
  with_report(args.output, std::move(environment), [&](ReportWriter& report) {
    serve_arrivals(args, options, size, log, report);
    measure_layers_of_run(args, size, log, report);
  });
}

void check_shares_of_run(const ThroughputArgs& args) {
  const ActivationSparsityRequest& request = args.model.model.activation_sparsity;
  if (args.model.config.empty()) {
    throw UsageError("--predicted and --zeros are for the random weights of --config");
  }
  const bool predicts = args.predicted.has_value();
  if (request.mode !=
          (predicts ? ActivationSparsity::Mode::predict : ActivationSparsity::Mode::exact) ||
      request.alpha) {
    throw UsageError(
        "--predicted and --zeros are for --activation-sparsity predict without --alpha, --zeros "
        "alone is for exact");
  }
  if (predicts && *args.predicted > *args.zeros) {
    throw UsageError(
        fmt::format("--predicted {} is more than --zeros {}; what is predicted counts "
                    "as zero",
                    *args.predicted, *args.zeros));
  }
}

void measure_throughput(const ThroughputArgs& given, const std::vector<std::string>& command_line) {
  ThroughputArgs args = given;
  const int64_t most = *std::max_element(args.batches.begin(), args.batches.end());
  if (args.step_tokens && *args.step_tokens < most) {
    throw UsageError(
        fmt::format("--step-tokens {} is less than --batch {}", *args.step_tokens, most));
  }
  if (args.zeros) {
    check_shares_of_run(args);
  }
  check_bench_model(args.model);  // what can be refused is refused before anything is measured
  const LengthRange output = args.output.tokens.value_or(
      LengthRange{.min = ThroughputOptions().output, .max = ThroughputOptions().output});
  const auto log = make_log(kTool, args.model.model);
  warn_about_device(args.model.model.device, *log);
  catch_interrupts();
  if (args.zeros) {
    choose_neuron_shares(args.model, args.predicted, *args.zeros, *log);
  }
  Environment environment = describe_model_environment(args.model, command_line);
  if (shows_layers(args)) {
    environment.push_back(verdict_property());
  }
  if (args.arrival_rate) {
    measure_arrivals(args, output, std::move(environment), *log);
  } else {
    measure_batches(args, output, std::move(environment), *log);
  }
}

class ThroughputCommand : public BenchCommand {
 public:
  explicit ThroughputCommand(CLI::App& app)
      : BenchCommand(app, "throughput",
                     "Tokens per GPU-second of a model, batch by batch or as requests arrive") {
    add_throughput_options(subcommand(), args_);
  }

  void run(const std::vector<std::string>& command_line) override;

 private:
  ThroughputArgs args_;
};

void ThroughputCommand::run(const std::vector<std::string>& command_line) {
  check_throughput_options(subcommand(), args_);
  if (args_.server.url) {
    return measure_server(args_, command_line);
  }
  BenchModelArgs& model = args_.model;
  check_bench_model_args(model);
  with_ranks(
      kTool, model.model, [&] { return std::vector{bench_rank_model(model)}; },
      [&] { measure_throughput(args_, command_line); });
}

}  // namespace

std::unique_ptr<BenchCommand> add_throughput_command(CLI::App& app) {
  return std::make_unique<ThroughputCommand>(app);
}

}  // namespace sparsellm
