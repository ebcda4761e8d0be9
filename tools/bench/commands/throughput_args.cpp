#include "tools/bench/commands/throughput_args.h"

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <string>

#include "tools/bench/commands/options.h"
#include "tools/bench/list_option.h"
#include "tools/cli/args.h"
#include "tools/cli/rank_args.h"

namespace sparsellm {

void add_throughput_options(CLI::App& command, ThroughputArgs& args) {
  add_bench_model_args(command, args.model);
  add_rank_args(command, args.model.model.ranks);
  CLI::Option* const batch =
      add_list(command, "--batch", args.batches,
               "Requests that run together; with --arrivals the largest is the most at a time")
          ->check(CLI::Range(int64_t{1}, int64_t{1} << 16))
          ->capture_default_str();
  batch->type_name("N,...");
  command
      .add_option_function<std::string>(
          "--prompt",
          [&args](const std::string& text) { args.prompt = parse_length_range("--prompt", text); },
          "Random tokens of a prompt; with --arrivals also a range, such as 32:512 [64]")
      ->type_name("TOKENS");
  command
      .add_option("--step-tokens", args.step_tokens,
                  fmt::format("Tokens computed in one step at most, no less than requests; the "
                              "prompts' come in chunks [{}]",
                              ThroughputOptions().step_tokens))
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  add_output_args(command, args.output, OutputTokens::yes);
  CLI::Option* const repeat =
      command.add_option("--repeat", args.repeats, "Measured runs of a batch, after a warm-up")
          ->check(is_count())
          ->capture_default_str();
  command.add_flag("--no-sums", args.no_sums,
                   "Leave out the sums over ranks, for what they cost: what is generated means "
                   "nothing");
  CLI::Option* const breakdown =
      command.add_flag("--breakdown", args.breakdown,
                       "Also the time of a step by group; then no step is enqueued ahead");
  CLI::Option* const arrivals =
      command
          .add_option_function<std::string>(
              "--arrivals",
              [&args](const std::string& text) {
                args.arrival_rate = parse_poisson("--arrivals", text);
              },
              "Requests arrive one by one, RATE a second on average, and latencies are measured")
          ->type_name("poisson:RATE")
          ->excludes(repeat)
          ->excludes(breakdown);
  command.add_option("--requests", args.requests, "Requests that arrive")
      ->check(is_count())
      ->capture_default_str()
      ->needs(arrivals);
  command.add_flag("--warm-up,!--no-warm-up", args.warm_up,
                   "Capture the CUDA graphs of all batch sizes while the model is loaded; without, "
                   "each in the first step that needs it [yes]");
  CLI::Option* const predicted =
      command
          .add_option("--predicted", args.predicted,
                      "With --activation-sparsity predict and random weights: share of the neurons "
                      "that is predicted to be zero, by alphas that are chosen for it")
          ->check(CLI::Range(0.0, 1.0));
  CLI::Option* const zeros =
      command
          .add_option("--zeros", args.zeros,
                      "With random weights: share that is zero, with what is predicted, by "
                      "thresholds of FATReLU; with --activation-sparsity exact it stands alone")
          ->check(CLI::Range(0.0, 1.0));
  predicted->needs(zeros);
  command.add_flag_function(
      "--layers,!--no-layers", [&args](int64_t times) { args.layers = times > 0; },
      "Then also the tables of `layers`, for the buckets of tokens that the batches are in [if "
      "weights "
      "are in a sparse format]");
}

}  // namespace sparsellm
