#include <spdlog/logger.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/cpu_isa.h"
#include "kernels/base/device.h"
#include "kernels/base/dtype.h"
#include "kernels/zero_pattern.h"
#include "models/weights/shares.h"
#include "sparse/general_sparse/format/layout.h"
#include "sparse/records_choice.h"
#include "sparse/tca_bme/tca_bme.h"
#include "tools/bench/ablation.h"
#include "tools/bench/ablation_contender.h"
#include "tools/bench/args.h"
#include "tools/bench/commands/command.h"
#include "tools/bench/commands/kernel_args.h"
#include "tools/bench/commands/layer_shapes.h"
#include "tools/bench/commands/options.h"
#include "tools/bench/commands/report.h"
#include "tools/bench/environment.h"
#include "tools/bench/kernel.h"
#include "tools/bench/kernel_report.h"
#include "tools/bench/linear_shapes.h"
#include "tools/bench/matrix_args.h"
#include "tools/bench/matrix_bench.h"
#include "tools/bench/matrix_report.h"
#include "tools/cli/args.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/report.h"
#include "tools/cli/tool_main.h"

namespace sparsellm {
namespace {

// Each of which is possible with each of the sparsities.
std::vector<ZeroPattern> parse_patterns(const std::vector<std::string>& texts,
                                        const std::vector<double>& sparsities) {
  std::vector<ZeroPattern> patterns;
  for (const std::string& text : texts) {
    patterns.push_back(parse_pattern("--pattern", text));
    for (const double sparsity : sparsities) {
      check_pattern("--pattern", patterns.back(), sparsity);
    }
  }
  return patterns;
}

// Of --shape, or of the layers in --config that are usually pruned; each shape once.
LayerShapes layer_shapes(const KernelArgs& args) {
  LayerShapes shapes = parse_layer_shapes(args.shapes);
  for (const std::string& config : args.configs) {
    for (const int64_t degree : args.degrees) {
      for (const LinearShape& layer : linear_shard_shapes(config, {.rank = 0, .degree = degree})) {
        if (layer.pruned) {
          add_layer_shape({layer.out, layer.in}, shapes);
        }
      }
    }
  }
  return shapes;
}

// Products of sparse matrices.
void kernel_of_matrices(const KernelArgs& args, const std::vector<std::string>& command_line) {
  if (args.ablation && args.matrices.search.plans == 0) {
    throw UsageError("--ablation of products of sparse matrices needs --search");
  }
  const KernelBenchOptions& common = args.options;
  MatrixBenchOptions options;
  options.matrices = matrix_sources(args.matrices, common.seed);
  options.orders = matrix_orders(args.matrices);
  options.search = args.matrices.search;
  options.search.stages = args.ablation;
  options.search.kernels.warn = warnings_to_stderr();
  options.layout = args.layout;
  if (!args.tokens.empty()) {
    options.columns = args.tokens;
  }
  if (!args.dtype.empty()) {
    options.dtype = dtype_named(args.dtype);
  }
  options.repeat = common.repeat;
  options.rotation_bytes = args.copies_mib << 20;
  options.threads = common.threads;
  options.seed = common.seed;
  check_options(options);  // what can be refused is refused before anything is measured
  warn_about_device(args.device, *make_log(kTool, {}));
  options.device = parse_device(args.device);
  options.cpu_isa = parse_cpu_isa(args.cpu_isa);
  catch_interrupts();
  Environment environment = describe_environment(options.device, command_line, options.cpu_isa);
  environment.push_back(dtype_property(options.dtype));
  environment.push_back({.key = "verdict", .value = std::string(matrix_verdict_rule())});
  with_report(args.output, std::move(environment),
              [&](ReportWriter& report) { report_matrices(options, report); });
}

// Products of the weights of linear layers.
void kernel_of_layers(const KernelArgs& args, const std::vector<std::string>& command_line) {
  KernelBenchOptions options = args.options;
  options.shapes = layer_shapes(args);
  if (options.shapes.empty()) {
    throw UsageError(
        "there is nothing to benchmark; give --shape OUTxIN or --config FILE, or sparse matrices: "
        "--matrix, --class or --matrices");
  }
  if (args.dtype == name_of(DType::f32)) {
    throw UsageError("--dtype f32 is for --matrix, --class and --matrices");
  }
  if (!args.tokens.empty()) {
    options.tokens = args.tokens;
  } else if (args.ablation) {
    options.tokens.assign(std::begin(kAblationTokens), std::end(kAblationTokens));
  }
  if (!args.formats.empty()) {
    options.formats = args.formats;
  } else if (args.ablation) {
    options.formats = {std::string(ablation_formats().front())};
  }
  if (args.ablation) {
    check_ablation_formats(options.formats);
  }
  if (!args.layout.empty() &&
      std::ranges::find(options.formats, general_sparse::kName) == options.formats.end()) {
    throw UsageError("--layout is for --formats general_sparse, --matrix, --class and --matrices");
  }
  options.layout = args.layout;
  const bool has_records =
      std::ranges::find(options.formats, tca_bme_format().name()) != options.formats.end();
  const bool has_values =
      has_narrow_values(args.records) && std::ranges::any_of(options.formats, always_rounds);
  if (!args.records.empty() && !has_records && !has_values) {
    throw UsageError(has_narrow_values(args.records)
                         ? "--values is for --formats tca_bme and the dense format of these values"
                         : "--records is for --formats tca_bme");
  }
  options.records = args.records;
  options.patterns = parse_patterns(args.patterns, options.sparsities);
  options.dtype = args.dtype.empty() ? options.dtype : dtype_named(args.dtype);
  warn_about_device(args.device, *make_log(kTool, {}));
  options.device = parse_device(args.device);
  options.cpu_isa = parse_cpu_isa(args.cpu_isa);
  options.rotation_bytes = args.copies_mib << 20;
  catch_interrupts();
  Environment environment = describe_environment(options.device, command_line, options.cpu_isa);
  environment.push_back(dtype_property(options.dtype));
  if (!args.ablation) {
    environment.push_back(verdict_property());
  }
  with_report(args.output, std::move(environment), [&](ReportWriter& report) {
    args.ablation ? report_ablation(options, report) : report_kernels(options, report);
  });
}

class KernelCommand : public BenchCommand {
 public:
  explicit KernelCommand(CLI::App& app)
      : BenchCommand(app, "kernel", "Time of single linear layers by format, sparsity and tokens") {
    add_kernel_options(subcommand(), args_);
  }

  void run(const std::vector<std::string>& command_line) override;

 private:
  KernelArgs args_;
};

void KernelCommand::run(const std::vector<std::string>& command_line) {
  check_matrix_args(args_.matrices);
  if (args_.matrices.given()) {
    kernel_of_matrices(args_, command_line);
  } else {
    kernel_of_layers(args_, command_line);
  }
}

}  // namespace

std::unique_ptr<BenchCommand> add_kernel_command(CLI::App& app) {
  return std::make_unique<KernelCommand>(app);
}

}  // namespace sparsellm
