// Prunes a model and stores it in sparse formats:
// sparsellm-convert -m MODEL --output DIR --prune wanda --sparsity 0.5 --calibration TEXT.

#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/conversion/convert.h"
#include "kernels/base/json_reader.h"
#include "kernels/block_shape.h"
#include "sparse/general_sparse/format/layout.h"
#include "sparse/registry.h"
#include "tools/cli/activation_sparsity_args.h"
#include "tools/cli/args.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/printable.h"
#include "tools/cli/progress_bar.h"
#include "tools/cli/tool_main.h"
#include "tools/convert/convert_report.h"
#include "tools/convert/model_card.h"

namespace sparsellm {
namespace {

constexpr char kTool[] = "sparsellm-convert";

struct ConvertArgs {
  std::string model;
  std::string output;
  std::optional<std::string> dtype;
  std::string format = std::string(kAutoFormat);
  std::string layout;
  std::string records;
  std::optional<std::string> format_rules;
  std::string prune = "none";
  std::optional<double> sparsity;
  std::optional<std::string> scope;
  std::optional<std::string> block;
  std::optional<uint64_t> seed;
  std::optional<std::string> plan;
  std::optional<std::string> calibration;
  std::optional<int64_t> calibration_tokens;
  std::optional<std::string> activation_sparsity;
  std::optional<Votes> votes;
  std::optional<double> max_loss;
  int64_t max_shard_bytes = ConvertOptions().max_shard_bytes;
  int threads = 0;
  bool dry_run = false;
  bool force = false;
  bool verify = false;
  bool json = false;
  bool no_tokenizer = false;
  bool quiet = false;
};

void add_prune_args(CLI::App& app, ConvertArgs& args) {
  auto* const plan =
      app.add_option("--plan", args.plan,
                     "JSON file that says for each linear layer how it is pruned and stored, such "
                     "as those in configs/plans")
          ->check(not_empty());
  std::vector<std::string> formats{std::string(kAutoFormat), std::string(kSmallestFormat)};
  for (const WeightFormat* format : weight_formats()) {
    formats.emplace_back(format->name());
  }
  app.add_option(
         "--format", args.format,
         "Of the linear layers' weights; auto: for each the fastest on a GPU, by rules that "
         "were measured; smallest: that in which it takes the fewest bytes")
      ->check(CLI::IsMember(formats))
      ->excludes(plan)
      ->capture_default_str();
  app.add_option("--layout", args.layout,
                 "Of --format general_sparse: the layout of all weights, as text [by rule]")
      ->type_name("TEXT")
      ->check(is_layout())
      ->excludes(plan);
  add_records_arg(app, args.records)->excludes(plan);
  app.get_option("--values")->excludes(plan);
  app.add_option("--format-rules", args.format_rules,
                 "JSON file of the rules that auto goes by, such as those in configs/format-rules "
                 "[those of configs/format-rules/h200.json]")
      ->type_name("FILE")
      ->check(not_empty());
  app.add_option("--prune", args.prune,
                 "none keeps the weights as they are; magnitude, random, wanda, or N:M such as 2:4 "
                 "sets some to zero")
      ->type_name("METHOD")
      ->excludes(plan)
      ->capture_default_str();
  app.add_option("--sparsity", args.sparsity,
                 "Share of zeros that magnitude, random and wanda come to; zeros that are there "
                 "count")
      ->check(CLI::Range(0.0, 1.0))
      ->excludes(plan);
  app.add_option("--scope", args.scope,
                 "Of magnitude and random: the share holds in each row (an output) or in the "
                 "matrix [row]")
      ->check(CLI::IsMember({"row", "matrix"}))
      ->excludes(plan);
  app.add_option("--block", args.block,
                 "Of magnitude and random: blocks of R rows and C columns become zero as a whole")
      ->type_name("RxC")
      ->excludes(plan);
  app.add_option("--seed", args.seed, "Of random [0]")->check(is_seed())->excludes(plan);
  auto* const calibration =
      app.add_option("--calibration", args.calibration,
                     "Text on which wanda, and N:M if it is there, measures the inputs of "
                     "layers, or activation sparsity is calibrated")
          ->type_name("FILE")
          ->check(not_empty());
  app.add_option("--calibration-tokens", args.calibration_tokens,
                 "Tokens of it to take, at most [32768; for activation sparsity 8192]")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31))
      ->needs(calibration);
}

void add_activation_sparsity_args(CLI::App& app, ConvertArgs& args) {
  app.add_option("--activation-sparsity", args.activation_sparsity,
                 "predict: find out which neurons of a ReLU model may be skipped because signs "
                 "predict them to be zero, and store it in config.json")
      ->check(CLI::IsMember({name_of(ActivationSparsity::Mode::predict)}))
      ->type_name("MODE");
  add_votes_arg(app, args.votes, "weighted");
  app.add_option("--max-loss", args.max_loss,
                 "How much the prediction may increase the perplexity of the text [0.005]");
}

void add_convert_args(CLI::App& app, ConvertArgs& args) {
  app.add_option("-m,--model", args.model, "Model directory in Hugging Face format")
      ->required()
      ->check(not_empty());
  auto* const output =
      app.add_option("--output", args.output, "Model directory to write")->check(not_empty());
  app.add_option("--dtype", args.dtype,
                 "Convert all floating-point tensors, before anything is pruned [as they are]")
      ->check(CLI::IsMember({"f16", "bf16"}));
  add_prune_args(app, args);
  add_activation_sparsity_args(app, args);
  app.add_flag("--no-tokenizer", args.no_tokenizer,
               "Neither check nor copy the tokenizer, which the engine may not be able to read");
  app.add_flag("--dry-run", args.dry_run,
               "Write nothing; say what the model would take in every format")
      ->excludes(output);
  app.add_option_function<std::string>(
         "--max-shard-size",
         [&args](const std::string& text) {
           args.max_shard_bytes = parse_size("--max-shard-size", text);
         },
         "Bytes of tensors in a file, at most, e.g. 2G (powers of 1024) or 5GB (of 1000) [5GB]")
      ->type_name("SIZE")
      ->needs(output);
  app.add_flag("--force", args.force, "Replace an output that is a model directory")->needs(output);
  app.add_flag("--verify", args.verify,
               "Decode every weight that was encoded, and read back what was written")
      ->needs(output);
  app.add_flag("--json", args.json, "The closing table as JSON, with a row for every weight");
  app.add_option("-t,--threads", args.threads, "Threads; 0: one for each core that it may use")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_flag("--quiet", args.quiet, "Nothing on stderr but errors");
}

PruneSettings prune_settings(const ConvertArgs& args) {
  using Kind = PruneMethod::Kind;
  PruneSettings settings;
  try {
    settings.method = parse_prune_method(args.prune);
  } catch (const Error& error) {
    throw UsageError(fmt::format("--prune: {}", error.what()));
  }
  const Kind kind = settings.method.kind;
  const bool to_sparsity = kind == Kind::magnitude || kind == Kind::random || kind == Kind::wanda;
  if (to_sparsity != args.sparsity.has_value()) {
    throw UsageError(to_sparsity ? fmt::format("--prune {} needs --sparsity", args.prune)
                                 : fmt::format("--sparsity {} is not for --prune {}",
                                               *args.sparsity, args.prune));
  }
  if (args.sparsity && std::isnan(*args.sparsity)) {  // which CLI::Range lets pass
    throw UsageError("--sparsity nan is not in [0, 1]");
  }
  for (const auto& [flag, given] :
       {std::pair("--scope", args.scope.has_value()), {"--block", args.block.has_value()}}) {
    if (given && kind != Kind::magnitude && kind != Kind::random) {
      throw UsageError(fmt::format("{} is not for --prune {}", flag, args.prune));
    }
  }
  if (args.seed && kind != Kind::random) {
    throw UsageError(fmt::format("--seed is not for --prune {}", args.prune));
  }
  if (kind == Kind::wanda && !args.calibration) {
    throw UsageError("--prune wanda needs --calibration");
  }
  if (args.calibration && kind != Kind::wanda && kind != Kind::n_m && !args.activation_sparsity) {
    throw UsageError(fmt::format("--calibration is not for --prune {}", args.prune));
  }
  settings.sparsity = args.sparsity.value_or(0.0);
  settings.scope = args.scope == "matrix" ? PruneScope::matrix : PruneScope::row;
  settings.seed = args.seed.value_or(0);
  if (args.block) {
    const std::optional<BlockShape> block = parse_block_shape(*args.block);
    if (!block) {
      throw UsageError(
          fmt::format("--block {}; expected {}", quote(*args.block), kBlockShapeSyntax));
    }
    settings.block = *block;
  }
  return settings;
}

std::optional<ActivationSparsitySearch> sparsity_search(const ConvertArgs& args) {
  constexpr int64_t kTokens = 8192;
  if (!args.activation_sparsity) {
    for (const auto& [flag, given] : {std::pair("--votes", args.votes.has_value()),
                                      {"--max-loss", args.max_loss.has_value()}}) {
      if (given) {
        throw UsageError(fmt::format("{} needs --activation-sparsity", flag));
      }
    }
    return std::nullopt;
  }
  if (!args.calibration) {
    throw UsageError(
        fmt::format("--activation-sparsity {} needs --calibration", *args.activation_sparsity));
  }
  if (args.dry_run) {
    throw UsageError("--activation-sparsity is not for --dry-run");
  }
  ActivationSparsitySearch search{
      .calibration = {.file = *args.calibration,
                      .tokens = args.calibration_tokens.value_or(kTokens)},
      .votes = args.votes.value_or(Votes::weighted)};
  search.max_loss = args.max_loss.value_or(search.max_loss);
  if (!(search.max_loss > 0.0 && search.max_loss < 1.0)) {
    throw UsageError(fmt::format("--max-loss {} is not in (0, 1)", search.max_loss));
  }
  return search;
}

ConvertOptions options_of(const ConvertArgs& args) {
  ConvertOptions options{
      .input = args.model,
      .output = args.output,
      .plan = args.plan ? SparsityPlan::read(*args.plan)
                        : SparsityPlan::uniform(prune_settings(args), args.format,
                                                args.records.empty() ? args.layout : args.records)};
  options.activation_sparsity = sparsity_search(args);
  if (args.calibration && !options.activation_sparsity) {
    constexpr int64_t kTokens = 32768;
    options.calibration = CalibrationFile{.file = *args.calibration,
                                          .tokens = args.calibration_tokens.value_or(kTokens)};
  }
  if (args.format_rules) {
    options.rules = FormatRules::read(*args.format_rules);
  }
  if (args.dtype) {
    options.dtype = *args.dtype == "f16" ? DType::f16 : DType::bf16;
  }
  options.with_tokenizer = !args.no_tokenizer;
  options.threads = args.threads;
  options.replace = args.force;
  options.verify = args.verify;
  options.max_shard_bytes = args.max_shard_bytes;
  options.poll = throw_if_interrupted;
  options.model_card = [input = options.input,
                        output = options.output](const Conversion& conversion) {
    return model_card(input, output, conversion);
  };
  return options;
}

// "eta 12 s", if the rest takes as long as what is done.
std::string rest_of_time(int64_t done, int64_t total, double seconds) {
  return done > 0 ? fmt::format("eta {:.0f} s", seconds * static_cast<double>(total - done) /
                                                    static_cast<double>(done))
                  : std::string();
}

void convert(const ConvertArgs& args) {
  if (args.output.empty() && !args.dry_run) {
    throw UsageError("there is nothing to do; give --output DIR or --dry-run");
  }
  if (args.output == "-") {
    throw UsageError("--output - is no directory; give a name, ./- if it is to be that");
  }
  if (args.format_rules && !args.plan && !args.dry_run && args.format != kAutoFormat) {
    throw UsageError(fmt::format("--format-rules is not for --format {}", args.format));
  }
  if (!args.layout.empty() && args.format != general_sparse::kName) {
    throw UsageError(fmt::format("--layout is not for --format {}", args.format));
  }
  check_records_arg(args.records, "--format", args.format);
  catch_interrupts();
  ConvertOptions options = options_of(args);
  Environment environment{{.key = "model", .value = args.model}};
  if (!args.dry_run) {
    environment.push_back({.key = "output", .value = args.output});
  }
  ReportWriter report(
      args.json ? ReportFormat::json : ReportFormat::table, std::move(environment),
      [](std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); });
  const Detail detail = args.json ? Detail::weights : Detail::groups;
  std::vector<Inspection> inspections;
  std::optional<Conversion> conversion;
  {
    ProgressBar bar(args.dry_run ? "reading" : "converting", !args.quiet);
    const auto start = std::chrono::steady_clock::now();
    options.progress = [&](int64_t done, int64_t total, std::string_view tensor) {
      const double seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      bar.update(done, total,
                 fmt::format("{} {}", rest_of_time(done, total, seconds), printable(tensor)));
    };
    if (args.dry_run) {
      inspections = inspect_model(options);
    } else {
      conversion = convert_model(options);
    }
  }
  ModelArgs log_args;
  log_args.quiet = args.quiet;
  const std::unique_ptr<spdlog::logger> log = make_log(kTool, log_args);
  for (const std::string& warning :
       conversion_warnings(conversion ? *conversion : inspections.front().conversion)) {
    log->warn("{}", printable(warning));
  }
  if (conversion) {
    report_conversion(*conversion, detail, report);
  } else {
    report_inspection(inspections, detail, report);
  }
  report.finish();
}

}  // namespace
}  // namespace sparsellm

int main(int argc, char** argv) {
  CLI::App app("Prunes a model and stores it in sparse formats.", sparsellm::kTool);
  sparsellm::ConvertArgs args;
  sparsellm::add_convert_args(app, args);
  return sparsellm::tool_main(app, argc, argv, [&] { sparsellm::convert(args); });
}
