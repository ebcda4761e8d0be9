// Judges models: sparsellm-eval perplexity -m MODEL --text FILE,
//                sparsellm-eval compare A B --text FILE,
//                sparsellm-eval activation -m MODEL --text FILE.

#include <spdlog/logger.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/device.h"
#include "kernels/base/json_writer.h"
#include "kernels/base/mapped_file.h"
#include "models/config.h"
#include "models/storage/model_directory.h"
#include "tools/cli/activation_sparsity_args.h"
#include "tools/cli/args.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/printable.h"
#include "tools/cli/progress_bar.h"
#include "tools/cli/tool_main.h"
#include "tools/cli/with_ranks.h"
#include "tools/eval/activation.h"
#include "tools/eval/compare.h"
#include "tools/eval/neuron_report.h"
#include "tools/eval/perplexity.h"
#include "tools/eval/random_mask.h"

namespace sparsellm {
namespace {

constexpr char kTool[] = "sparsellm-eval";

constexpr int64_t kMaxTextBytes = 1 << 30;
// Windows that are prefilled together; more gains nothing and takes KV cache.
constexpr int64_t kWindowsAtOnce = 8;

// What is scored, and how the result is printed.
struct ScoringArgs {
  std::string text;
  int64_t context = 512;
  std::string protocol = "windows";
  bool decode = false;
  bool json = false;

  ScoredRows rows() const { return decode ? ScoredRows::decode : ScoredRows::prefill; }
};

struct PerplexityArgs {
  ModelArgs model;
  std::optional<double> random_mask;  // --activation-sparsity random:P
  ScoringArgs scoring;
};

RankArgs ranks_of_b(RankArgs ranks, const std::optional<int>& degree) {
  if (degree && ranks.launched && *degree != ranks.launched->size) {
    throw UsageError(fmt::format("--tensor-parallel-b {}, but {} processes were started", *degree,
                                 ranks.launched->size));
  }
  ranks.degree = degree ? degree : ranks.degree;
  ranks.model = 1;
  return ranks;
}

// The settings of B are those of A, except for what an option with a name in -b says. settings_b()
// is the one place where the two part.
struct CompareArgs {
  ModelArgs a;
  std::string model_b;   // empty: that of A
  std::string device_b;  // empty: that of A
  std::optional<int> degree_b;
  std::optional<std::string> activation_sparsity_b;
  std::optional<std::string> alpha_b;
  ScoringArgs scoring;

  ModelArgs settings_b() const {
    ModelArgs b = a;
    b.model = model_b.empty() ? a.model : model_b;
    b.device = device_b.empty() ? a.device : device_b;
    b.ranks = ranks_of_b(a.ranks, degree_b);
    if (activation_sparsity_b) {
      const auto mode = parse_mode(*activation_sparsity_b);
      if (mode != a.activation_sparsity.mode) {  // votes and alphas are those of a mode
        b.activation_sparsity = {.mode = mode};
      }
    }
    if (alpha_b) {
      b.activation_sparsity.alpha = parse_alpha("--alpha-b", *alpha_b);
    }
    return b;
  }
};

struct ActivationArgs {
  ModelArgs model;
  std::string text;
  int64_t context = 512;
  std::vector<float> alphas{0.98f, 1.0f, 1.02f};
  bool json = false;
};

const std::map<std::string, PerplexityProtocol> kProtocols{
    {"windows", PerplexityProtocol::windows}, {"llama.cpp", PerplexityProtocol::llama_cpp}};

// --text, --context and --json, which all commands have.
template <class Args>
void add_text_args(CLI::App& command, Args& args) {
  command.add_option("--text", args.text, "Text file to score")->required()->check(not_empty());
  command.add_option("--context", args.context, "Tokens of a window")
      ->check(CLI::Range(int64_t{4}, int64_t{1} << 31))
      ->capture_default_str();
  command.add_flag("--json", args.json, "Print one JSON object");
}

void add_scoring_args(CLI::App& command, ScoringArgs& args) {
  add_text_args(command, args);
  command
      .add_option("--protocol", args.protocol,
                  "windows: BOS and context - 1 tokens, all scored; llama.cpp: context tokens, "
                  "the second half scored")
      ->check(CLI::IsMember({"windows", "llama.cpp"}))
      ->capture_default_str();
  command.add_flag("--decode", args.decode,
                   "Compute one row of each window a step, as if the model had written the text");
}

CLI::App* add_perplexity(CLI::App& app, PerplexityArgs& args) {
  CLI::App* command =
      app.add_subcommand("perplexity", "Perplexity of a text with its standard error");
  add_model_args(*command, args.model);
  add_rank_args(*command, args.model.ranks);
  replace_mode_arg(*command, args.model.activation_sparsity, args.random_mask);
  add_scoring_args(*command, args.scoring);
  return command;
}

CLI::App* add_compare(CLI::App& app, CompareArgs& args) {
  CLI::App* command = app.add_subcommand(
      "compare", "How far model B is from the reference A, over the tokens of a text");
  add_model_args(*command, args.a);
  add_rank_args(*command, args.a.ranks);
  command->remove_option(command->get_option("--model"));  // the models are A and B here
  command->add_option("A", args.a.model, "Model directory of the reference")
      ->required()
      ->check(not_empty());
  command->add_option("B", args.model_b, "Model directory of the candidate; A again if left out")
      ->check(not_empty());
  command->add_option("--device-b", args.device_b, "Device of B; that of A if left out")
      ->check(not_empty());
  add_degree_arg(*command, "--tensor-parallel-b", args.degree_b,
                 "Ranks of B; as many as of A if left out");
  command
      ->add_option("--activation-sparsity-b", args.activation_sparsity_b,
                   "Activation sparsity of B; that of A if left out")
      ->check(CLI::IsMember({"stored", "off", "exact", "predict"}))
      ->type_name("MODE");
  command->add_option("--alpha-b", args.alpha_b, "Alpha of B; that of A if left out")
      ->type_name("A[:LAYERS]");
  add_scoring_args(*command, args.scoring);
  return command;
}

CLI::App* add_activation(CLI::App& app, ActivationArgs& args) {
  CLI::App* command = app.add_subcommand(
      "activation", "Which neurons of a ReLU model are zero, and which are predicted to be");
  add_model_args(*command, args.model);
  add_rank_args(*command, args.model.ranks);
  for (const char* name : {"--activation-sparsity", "--alpha"}) {  // neurons are exact here
    command->remove_option(command->get_option(name));
  }
  add_text_args(*command, args);
  command
      ->add_option("--alphas", args.alphas,
                   "Of the prediction: the larger, the fewer neurons are skipped")
      ->delimiter(',')
      ->type_name("A,...")
      ->default_str("0.98,1,1.02");
  return command;
}

std::string read_text(const std::string& path) {
  std::string text = read_text_file(path, kMaxTextBytes);
  require(!text.empty(), "the text file {} is empty", path);
  return text;
}

std::string describe(const ScoringArgs& args) {
  return fmt::format("{}, context {}{}", args.protocol, args.context,
                     args.decode ? ", decode steps" : "");
}

void print_json(JsonWriter report) { fmt::print("{}\n", std::move(report).text()); }

void perplexity(const PerplexityArgs& args) {
  const ScoringArgs& scoring = args.scoring;
  const std::string text = read_text(scoring.text);
  EngineOptions options;
  options.max_requests = scoring.decode ? kDecodedWindows : kWindowsAtOnce;
  options.context_size = scoring.context;
  std::optional<RandomMask> random_mask;
  if (args.random_mask) {
    options.neuron_observer = &random_mask.emplace(*args.random_mask);
  }
  const auto log = make_log(kTool, args.model);
  warn_about_device(args.model.device, *log);
  Engine engine = load_engine(args.model, options, *log);

  Perplexity result;
  {
    ProgressBar bar("scoring", !args.model.quiet);
    result = measure_perplexity(
        engine, text, scoring.context, kProtocols.at(scoring.protocol),
        [&bar](int64_t done, int64_t total) {
          throw_if_interrupted();
          bar.update(done, total, fmt::format("of {} tokens", total));
        },
        scoring.rows());
  }
  const double speed = static_cast<double>(result.tokens) / result.seconds;
  const std::string neurons = neuron_shares_text(engine);  // of decode rows
  if (scoring.json) {
    JsonWriter report;
    report.object()
        .member("model", args.model.model)
        .member("text", scoring.text)
        .member("protocol", scoring.protocol)
        .member("context", scoring.context)
        .member("decode", scoring.decode)
        .member("windows", result.windows)
        .member("tokens", result.tokens)
        .member("perplexity", result.perplexity)
        .member("standard_error", result.standard_error)
        .member("tokens_per_second", speed);
    if (!neurons.empty()) {
      add_activation_sparsity("activation_sparsity", engine, report);
    }
    report.end();
    print_json(std::move(report));
    return;
  }
  fmt::print("perplexity  {:.4f} +- {:.4f}\n", result.perplexity, result.standard_error);
  fmt::print("protocol    {}\n", describe(scoring));
  fmt::print("scored      {} tokens in {} windows, {:.0f} tokens/s\n", result.tokens,
             result.windows, speed);
  if (!neurons.empty()) {
    fmt::print("neurons     {}\n", neurons);
  }
}

Engine load_for_comparison(const std::string& name, const ModelArgs& args,
                           const ScoringArgs& scoring, spdlog::logger& log) {
  return naming(name, [&] {
    const int64_t vocab_size = read_model_config(open_model_directory(args.model)).vocab_size;
    const ComparisonBatch batch = comparison_batch(vocab_size, scoring.context, scoring.rows());
    EngineOptions options;
    options.context_size = scoring.context;
    options.max_requests = batch.windows;
    options.step_tokens = batch.step_tokens;
    return load_engine(args, options, log);
  });
}

void add_top(std::string_view key, const TokenProbability& token, JsonWriter& json) {
  json.key(key)
      .object()
      .member("id", token.id)
      .member("text", token.bytes)
      .member("probability", token.probability)
      .end();
}

void print_comparison_json(const CompareArgs& args, const Comparison& result,
                           const Engine& engine_a, const Engine& engine_b) {
  const ModelArgs b = args.settings_b();
  const ComparedToken& worst = result.worst;
  JsonWriter report;
  report.object()
      .member("model_a", args.a.model)
      .member("model_b", b.model)
      .member("device_a", devices_text(args.a))
      .member("device_b", devices_text(b))
      .member("text", args.scoring.text)
      .member("protocol", args.scoring.protocol)
      .member("context", args.scoring.context)
      .member("decode", args.scoring.decode)
      .member("windows", result.windows)
      .member("tokens", result.tokens);
  add_activation_sparsity("activation_sparsity_a", engine_a, report);
  add_activation_sparsity("activation_sparsity_b", engine_b, report);
  report.member("kl_mean", result.kl.value)
      .member("kl_standard_error", result.kl.standard_error)
      .member("kl_median", result.kl_median)
      .member("kl_p99", result.kl_99)
      .member("kl_p999", result.kl_999)
      .member("kl_max", result.kl_max)
      .member("top1_agreement_percent", result.top1_agreement)
      .member("top1_gap_max", result.top1_gap_max)
      .member("perplexity_a", result.perplexity_a.value)
      .member("perplexity_a_standard_error", result.perplexity_a.standard_error)
      .member("perplexity_b", result.perplexity_b.value)
      .member("perplexity_b_standard_error", result.perplexity_b.standard_error)
      .member("perplexity_ratio", result.perplexity_ratio.value)
      .member("perplexity_ratio_standard_error", result.perplexity_ratio.standard_error);
  report.key("worst_token")
      .object()
      .member("kl", worst.kl)
      .member("position", worst.position)
      .member("context", worst.context)
      .member("id", worst.id)
      .member("text", worst.bytes)
      .member("probability_a", worst.probability_a)
      .member("probability_b", worst.probability_b);
  add_top("top_a", worst.top_a, report);
  add_top("top_b", worst.top_b, report);
  report.end();
  report.member("tokens_per_second", static_cast<double>(result.tokens) / result.seconds).end();
  print_json(std::move(report));
}

void print_comparison(const CompareArgs& args, const Comparison& result, const Engine& engine_a,
                      const Engine& engine_b) {
  const ModelArgs b = args.settings_b();
  const auto row = [](const char* name, const std::string& value) {
    fmt::print("{:<16} {}\n", name, value);
  };
  const auto estimate = [](const Estimate& e, int digits) {
    return fmt::format("{:.{}f} +- {:.{}f}", e.value, digits, e.standard_error, digits);
  };
  row("A", fmt::format("{} on {}", args.a.model, devices_text(args.a)));
  row("B", fmt::format("{} on {}", b.model, devices_text(b)));
  row("protocol", describe(args.scoring));
  row("scored", fmt::format("{} tokens in {} windows, {:.0f} tokens/s", result.tokens,
                            result.windows, static_cast<double>(result.tokens) / result.seconds));
  const auto has_sparsity = [](const Engine& engine) {
    return engine.config().activation_sparsity.mode != ActivationSparsity::Mode::off;
  };
  if (has_sparsity(engine_a) || has_sparsity(engine_b)) {
    row("neurons of A", activation_sparsity_text(engine_a));
    row("neurons of B", activation_sparsity_text(engine_b));
  }
  fmt::print("\n");
  row("KL(A || B)",
      fmt::format("{:.4g} +- {:.2g} nats", result.kl.value, result.kl.standard_error));
  row("  median", fmt::format("{:.4g}", result.kl_median));
  row("  99 %", fmt::format("{:.4g}", result.kl_99));
  row("  99.9 %", fmt::format("{:.4g}", result.kl_999));
  row("  maximum", fmt::format("{:.4g}", result.kl_max));
  row("top-1 agreement", fmt::format("{:.3f} %", result.top1_agreement));
  row("  gap, maximum", fmt::format("{:.4g}", result.top1_gap_max));
  row("perplexity A", estimate(result.perplexity_a, 4));
  row("perplexity B", estimate(result.perplexity_b, 4));
  row("B / A", estimate(result.perplexity_ratio, 6));
  fmt::print("\n");

  const ComparedToken& worst = result.worst;
  const auto quoted = [](const std::string& bytes) { return "\"" + printable(bytes) + "\""; };
  const auto top = [&](const TokenProbability& token) {
    return fmt::format("{} with probability {:.4g}", quoted(token.bytes), token.probability);
  };
  row("worst token", fmt::format("number {} of the text, KL {:.4g}", worst.position, worst.kl));
  row("  after", quoted(worst.context));
  row("  the text has", fmt::format("{} with probability {:.4g} in A, {:.4g} in B",
                                    quoted(worst.bytes), worst.probability_a, worst.probability_b));
  row("  top-1 of A", top(worst.top_a));
  row("  top-1 of B", top(worst.top_b));
}

void compare(const CompareArgs& args) {
  const ScoringArgs& scoring = args.scoring;
  const ModelArgs settings_b = args.settings_b();
  const std::string text = read_text(scoring.text);
  const std::string name_a = fmt::format("model A ({})", args.a.model);
  const std::string name_b = fmt::format("model B ({})", settings_b.model);
  const auto log = make_log(kTool, args.a);
  warn_about_device(args.a.device, *log);
  if (settings_b.device != args.a.device) {
    warn_about_device(settings_b.device, *log);
  }
  Engine a = load_for_comparison(name_a, args.a, scoring, *log);
  Engine b = load_for_comparison(name_b, settings_b, scoring, *log);

  Comparison result;
  {
    ProgressBar bar("comparing", !args.a.quiet);
    result = compare_models({.name = name_a, .engine = a}, {.name = name_b, .engine = b}, text,
                            {.context = scoring.context,
                             .protocol = kProtocols.at(scoring.protocol),
                             .rows = scoring.rows(),
                             .threads = args.a.threads,
                             .progress = [&bar](int64_t done, int64_t total) {
                               throw_if_interrupted();
                               bar.update(done, total, fmt::format("of {} tokens", total));
                             }});
  }
  if (scoring.json) {
    print_comparison_json(args, result, a, b);
  } else {
    print_comparison(args, result, a, b);
  }
}

// Ascending, each once.
std::vector<float> sorted_alphas(std::vector<float> alphas) {
  for (const float alpha : alphas) {
    if (!std::isfinite(alpha) || alpha <= 0.0f) {
      throw UsageError(fmt::format("--alphas {}; expected numbers above 0", alpha));
    }
  }
  std::sort(alphas.begin(), alphas.end());
  alphas.erase(std::unique(alphas.begin(), alphas.end()), alphas.end());
  return alphas;
}

void activation(const ActivationArgs& args) {
  const std::vector<float> alphas = sorted_alphas(args.alphas);
  const std::string text = read_text(args.text);
  ModelArgs model = args.model;
  model.device = model.device == "auto" ? "cpu" : model.device;
  const ModelConfig config = read_model_config(open_model_directory(model.model));
  const Votes votes = model.activation_sparsity.votes.value_or(config.activation_sparsity.votes);
  model.activation_sparsity = {.mode = ActivationSparsity::Mode::exact};
  NeuronStatistics statistics(config.num_layers, votes, alphas);
  EngineOptions options;
  options.max_requests = kDecodedWindows;
  options.context_size = args.context;
  options.neuron_observer = &statistics;
  const auto log = make_log(kTool, model);
  Engine engine = load_engine(model, options, *log);

  Perplexity result;
  {
    ProgressBar bar("scoring", !model.quiet);
    result = measure_perplexity(
        engine, text, args.context, PerplexityProtocol::windows,
        [&bar](int64_t done, int64_t total) {
          throw_if_interrupted();
          bar.update(done, total, fmt::format("of {} tokens", total));
        },
        ScoredRows::decode);
  }
  if (args.json) {
    JsonWriter report;
    report.object()
        .member("model", model.model)
        .member("text", args.text)
        .member("context", args.context)
        .member("votes", name_of(votes))
        .member("windows", result.windows)
        .member("tokens", result.tokens)
        .member("perplexity", result.perplexity);
    add_neurons(statistics, report);
    report.end();
    print_json(std::move(report));
    return;
  }
  fmt::print("{} votes, {} tokens in {} windows\n{}", name_of(votes), result.tokens, result.windows,
             neuron_tables(statistics));
}

}  // namespace
}  // namespace sparsellm

int main(int argc, char** argv) {
  CLI::App app("Judges language models.", sparsellm::kTool);
  app.require_subcommand(0, 1);  // a wrong one is named before it is said that one is missing
  sparsellm::PerplexityArgs perplexity_args;
  sparsellm::CompareArgs compare_args;
  sparsellm::ActivationArgs activation_args;
  const CLI::App* perplexity = sparsellm::add_perplexity(app, perplexity_args);
  const CLI::App* compare = sparsellm::add_compare(app, compare_args);
  const CLI::App* activation = sparsellm::add_activation(app, activation_args);
  return sparsellm::tool_main(app, argc, argv, [&] {
    using sparsellm::checkpoint_rank_model;
    const auto with_ranks_of = [](sparsellm::ModelArgs& model, const std::function<void()>& body) {
      sparsellm::with_ranks(
          sparsellm::kTool, model, [&model] { return std::vector{checkpoint_rank_model(model)}; },
          body);
    };
    if (perplexity->parsed()) {
      with_ranks_of(perplexity_args.model, [&] { sparsellm::perplexity(perplexity_args); });
    }
    if (compare->parsed()) {
      sparsellm::with_ranks(
          sparsellm::kTool, compare_args.a,
          [&] {
            return std::vector{checkpoint_rank_model(compare_args.a),
                               checkpoint_rank_model(compare_args.settings_b())};
          },
          [&] { sparsellm::compare(compare_args); });
    }
    if (activation->parsed()) {
      with_ranks_of(activation_args.model, [&] { sparsellm::activation(activation_args); });
    }
    if (!perplexity->parsed() && !compare->parsed() && !activation->parsed()) {
      throw sparsellm::UsageError("a subcommand is missing: perplexity, compare or activation");
    }
  });
}
