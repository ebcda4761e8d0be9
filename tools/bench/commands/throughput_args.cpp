#include "tools/bench/commands/throughput_args.h"

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "tools/bench/commands/options.h"
#include "tools/bench/list_option.h"
#include "tools/cli/args.h"
#include "tools/cli/rank_args.h"
#include "tools/cli/tool_main.h"

namespace sparsellm {
namespace {

// Of an engine or a server alike. All others say how an engine is loaded and run.
constexpr std::array<std::string_view, 15> kOptionsOfBoth{"arrivals",     "concurrency",
                                                          "requests",     "prompt",
                                                          "output",       "format",
                                                          "seed",         "model",
                                                          "config",       "quiet",
                                                          "verbose",      "url",
                                                          "api-key-file", "served-model-name",
                                                          "vocabulary"};

bool is_for_server(const CLI::Option& option) {
  const std::vector<std::string>& names = option.get_lnames();
  return std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return std::find(kOptionsOfBoth.begin(), kOptionsOfBoth.end(), name) != kOptionsOfBoth.end();
  });
}

void add_server_options(CLI::App& command, ServerBenchArgs& args, CLI::Option* arrivals) {
  CLI::Option* const url =
      command
          .add_option_function<std::string>(
              "--url",
              [&args](const std::string& text) { args.url = parse_server_url("--url", text); },
              "The requests go to a server of OpenAI's API, http://HOST:PORT or unix:PATH, instead "
              "of an engine in this program")
          ->type_name("URL");
  command
      .add_option("--concurrency", args.concurrency,
                  "Instead of --arrivals: requests that are under way at any time")
      ->check(is_count())
      ->needs(url)
      ->excludes(arrivals);
  command
      .add_option("--api-key-file", args.api_key_file,
                  "File whose first line is the key that the server asks for")
      ->check(not_empty())
      ->needs(url);
  command
      .add_option("--served-model-name", args.served_model_name,
                  "Name of the model on the server [the first that it lists]")
      ->check(not_empty())
      ->needs(url);
  command
      .add_option("--vocabulary", args.vocabulary,
                  "Prompts for the server have token ids below this [those of --config or --model, "
                  "or 1000]")
      ->check(is_count())
      ->needs(url);
}

}  // namespace

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
  CLI::Option* const adjusted =
      command
          .add_option("--adjusted", args.adjusted_every,
                      "One request of N has penalties, biases and log-probabilities")
          ->check(is_count());
  CLI::Option* const scored = command.add_flag(
      "--scored", args.scores_prompts, "Prompts with the log-probabilities of their tokens");
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
          ->excludes(breakdown)
          ->excludes(adjusted)
          ->excludes(scored);
  command.add_option("--requests", args.requests, "Requests that arrive")
      ->check(is_count())
      ->capture_default_str();
  add_server_options(command, args.server, arrivals);
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

void check_throughput_options(const CLI::App& command, const ThroughputArgs& args) {
  const bool arrives = args.arrival_rate || args.server.concurrency;
  if (!arrives && command.get_option("--requests")->count() > 0) {
    throw UsageError("--requests is of requests that arrive, by --arrivals or --concurrency");
  }
  if (!args.server.url) {
    return;
  }
  if (!arrives) {
    throw UsageError("--url needs --arrivals or --concurrency: how requests arrive");
  }
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() > 0 && !is_for_server(*option)) {
      throw UsageError(fmt::format(
          "{} is of an engine in this program; with --url the server has one", option->get_name()));
    }
  }
}

}  // namespace sparsellm
