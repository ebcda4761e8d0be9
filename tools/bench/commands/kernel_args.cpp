#include "tools/bench/commands/kernel_args.h"

#include <spdlog/fmt/ranges.h>

#include <CLI/CLI.hpp>

#include "tools/bench/ablation_contender.h"
#include "tools/bench/commands/options.h"
#include "tools/bench/list_option.h"
#include "tools/bench/matrix_bench.h"
#include "tools/cli/args.h"

namespace sparsellm {

void add_kernel_options(CLI::App& command, KernelArgs& args) {
  CLI::Option* const shape =
      add_list(command, "--shape", args.shapes, "Outputs x inputs of the layers to measure");
  shape->type_name("OUTxIN,...");
  CLI::Option* const config =
      command
          .add_option("--config", args.configs,
                      "Files in the format of config.json: their linear layers that are usually "
                      "pruned, each shape once")
          ->type_name("FILE ...")
          ->check(not_empty())
          ->excludes(shape);
  add_list(command, "--tensor-parallel", args.degrees,
           "The shapes that one of this many GPUs has of these layers")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 10))
      ->needs(config)
      ->capture_default_str();
  command.add_option("--device", args.device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  command
      .add_option("--dtype", args.dtype,
                  "Of the weights: f16 or bf16 [f16]; of sparse matrices also f32 [f32]")
      ->check(CLI::IsMember({"f16", "bf16", "f32"}));
  add_output_args(command, args.output, OutputTokens::no);
  KernelBenchOptions& options = args.options;
  add_list(command, "--tokens", args.tokens,
           fmt::format("Rows of the activations [{}; with --ablation {}]; with sparse matrices "
                       "columns of B [{}]",
                       fmt::join(options.tokens, ","), fmt::join(kAblationTokens, ","),
                       fmt::join(MatrixBenchOptions().columns, ",")))
      ->check(is_count());
  CLI::Option* const sparsity =
      add_list(command, "--sparsity", options.sparsities, "Shares of zeros in the random weights")
          ->check(CLI::Range(0.0, 1.0))
          ->capture_default_str();
  CLI::Option* const pattern = add_list(command, "--pattern", args.patterns,
                                        "Where these zeros are: uniform, rows:S, columns:S, "
                                        "magnitude:S, outliers:F, dense-blocks:F, "
                                        "kept-blocks:RxC")
                                   ->capture_default_str();
  pattern->type_name("PATTERN,...");
  CLI::Option* const formats =
      add_list(command, "--formats", args.formats,
               fmt::format("Formats of the weights [{}; with --ablation {}]",
                           fmt::join(options.formats, ","), ablation_formats().front()))
          ->check(not_empty());
  CLI::Option* const profile =
      command.add_flag("--profile", options.profile,
                       "Then launch each kernel once more between cudaProfilerStart and Stop");
  CLI::Option* const ablation = command
                                    .add_flag("--ablation", args.ablation,
                                              "The kernel of a format for few tokens, whole and "
                                              "with a stage erased or replaced; with "
                                              "--search the stages of general_sparse's")
                                    ->excludes(profile);
  command
      .add_option("--layout", args.layout,
                  "Of general_sparse, as text: what its weights, or sparse matrices, are encoded "
                  "in [by rule]")
      ->type_name("TEXT")
      ->check(is_layout())
      ->excludes(ablation);
  CLI::Option* const records = add_records_arg(command, args.records);
  records->excludes(ablation);
  add_matrix_args(command, args.matrices,
                  {shape, config, sparsity, pattern, formats, profile, records,
                   command.get_option("--values")});
  add_seed(command, options.seed, "Seed of the random weights and matrices");
  command.add_option("--repeat", args.options.repeat, "Timed products of each")
      ->check(is_count())
      ->capture_default_str();
  add_threads(command, args.options.threads);
  add_cpu_isa_arg(command, args.cpu_isa);
  add_copies(command, args.copies_mib);
}

}  // namespace sparsellm
