// Generates text: sparsellm-run -m MODEL -p "Once upon a time".

#include <spdlog/logger.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "engine/memory_fit.h"
#include "engine/resolve_options.h"
#include "kernels/base/json_reader.h"
#include "kernels/base/mapped_file.h"
#include "models/storage/model_directory.h"
#include "models/storage/safetensors.h"
#include "models/weights/checkpoint_loader.h"
#include "models/weights/weight_store.h"
#include "tools/cli/args.h"
#include "tools/cli/engine_args.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/memory_report.h"
#include "tools/cli/progress_bar.h"
#include "tools/cli/tool_main.h"
#include "tools/cli/with_ranks.h"
#include "tools/run/batch.h"
#include "tools/run/continuation.h"
#include "tools/run/generation_args.h"
#include "tools/run/result_check.h"
#include "tools/run/run_entries.h"

namespace sparsellm {
namespace {

constexpr char kTool[] = "sparsellm-run";

// Requests of a batch that are computed at once, as many as the engine does by default.
constexpr int64_t kBatchParallel = 32;

struct RunArgs {
  ModelArgs model;
  GenerationArgs generation;
  std::optional<std::string> prompt;
  std::optional<std::string> file;
  std::optional<std::string> prompts;
  std::optional<std::string> output;
  bool force = false;
  bool resume = false;
  bool json = false;
  bool parse_special = false;
  EngineArgs engine;
  std::optional<int64_t> parallel;
  bool fit = false;
  bool warm_up = false;
};

void add_batch_args(CLI::App& app, RunArgs& args) {
  auto* const prompts =
      app.add_option("--prompts", args.prompts,
                     "Batch: file with a JSON object a line: prompt (or prompt_ids), and as needed "
                     "id, max_tokens, temperature, top_k, top_p, min_p, repetition_penalty, "
                     "frequency_penalty, presence_penalty, logit_bias, seed, ignore_eos, stop, "
                     "stop_token_ids, n, logprobs, echo; the flags are the defaults")
          ->check(not_empty());
  auto* const output =
      app.add_option("--output", args.output,
                     "Batch: file for the results, a JSON object a line in the order of the "
                     "prompts; it is there when all are done, OUTPUT.partial until then. A line "
                     "that fails has an error in it; the exit code is 0 all the same")
          ->check(not_empty())
          ->needs(prompts);
  prompts->needs(output)->excludes("--prompt")->excludes("--file")->excludes("--json");
  app.add_flag("--resume", args.resume, "Go on with a batch that was interrupted")->needs(prompts);
  app.add_flag("--force", args.force, "Replace an output that is there already")->needs(prompts);
}

void add_run_args(CLI::App& app, RunArgs& args) {
  add_model_args(app, args.model);
  add_rank_args(app, args.model.ranks);
  auto* const prompt = app.add_option("-p,--prompt", args.prompt,
                                      "Text to continue; without it, --file and --prompts: lines "
                                      "from a terminal, or all of a redirected stdin");
  app.add_option("-f,--file", args.file,
                 "File with the text to continue, - for stdin; one newline at its end (LF or CRLF) "
                 "and a UTF-8 byte order mark are dropped")
      ->check(not_empty())
      ->excludes(prompt);
  app.add_flag("--json", args.json,
               "Print one JSON object instead of the text: text, token_ids, finish_reason, ...");
  add_batch_args(app, args);
  add_generation_args(app, args.generation);
  app.add_flag("--parse-special", args.parse_special,
               "Control tokens written in the prompt count as such, not as text");
  add_engine_args(app, args.engine);
  app.add_option("--parallel", args.parallel,
                 "Continuations computed at once [--samples; 32 with --prompts]")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 16));
  app.add_flag("--fit", args.fit,
               "Say what weights, a step and the KV cache of these flags would take, and how many "
               "requests of which length fit at most; nothing is loaded, but weights that would be "
               "converted are encoded to see what they take; with --json as one object");
  app.add_flag("--warm-up", args.warm_up,
               "Capture the CUDA graphs of all batch sizes while loading, instead of each in the "
               "first step that needs it");
}

std::string read_prompt_file(const std::string& path) {
  std::string text = prompt_of_file(read_text_file(path, kMaxPromptBytes));
  require(!text.empty(), "the prompt file {} is empty", path);
  return text;
}

std::string read_stdin() {
  std::string text;
  std::vector<char> block(1 << 16);
  while (const size_t count = std::fread(block.data(), 1, block.size(), stdin)) {
    text.append(block.data(), count);
    require(std::ssize(text) <= kMaxPromptBytes,
            "the prompt on standard input is longer than {} bytes", kMaxPromptBytes);
  }
  const bool good = std::ferror(stdin) == 0;  // before strerror is evaluated
  require(good, "cannot read standard input: {}", std::strerror(errno));
  text = prompt_of_file(std::move(text));
  require(!text.empty(), "the prompt on standard input is empty; -p TEXT or -f FILE gives one");
  return text;
}

double per_second(int64_t tokens, double seconds) {
  return seconds > 0.0 ? static_cast<double>(tokens) / seconds : 0.0;
}

void print_closing_table(const Engine& engine, const RunArgs& args) {
  const EngineStats& stats = engine.stats();
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  std::string text = fmt::format(
      "\n"
      "model    {}, {} layers, on {}, context {}\n",
      engine.config().architecture, engine.config().num_layers, devices_text(args.model),
      engine.context_size());
  text += weight_rows(engine.linear_weights(), stats.weight_bytes);
  text += fmt::format("load     {:10.3f} s\n", stats.load_seconds);
  if (stats.prefill_tokens > 0) {
    text += fmt::format("prefill  {:10} tokens {:9.1f} tokens/s", stats.prefill_tokens,
                        per_second(stats.prefill_tokens, stats.prefill_seconds));
    text += stats.shared_tokens > 0
                ? fmt::format("; {} of other samples not computed again\n", stats.shared_tokens)
                : "\n";
  }
  if (stats.decode_tokens > 0) {
    text += fmt::format("decode   {:10} tokens {:9.1f} tokens/s\n", stats.decode_tokens,
                        per_second(stats.decode_tokens, stats.decode_seconds));
  }
  if (stats.neurons.rows > 0) {
    text += fmt::format("neurons  {:10.1f} % not zero in decoded tokens",
                        100.0 * stats.neurons.active_share());
    text += stats.neurons.skipped > 0
                ? fmt::format("; {:.1f} % skipped\n", 100.0 * stats.neurons.skipped_share())
                : "\n";
  }
  if (stats.preemptions > 0) {
    text += fmt::format("preempt  {:10} times; {} tokens computed again\n", stats.preemptions,
                        stats.recomputed_tokens);
  }
  text += fmt::format("memory   {:10.1f} MiB at the peak; KV cache of up to {:.1f} MiB\n",
                      static_cast<double>(usage.ru_maxrss) / 1024.0, mib(stats.kv_bytes));
  print_error_text(text);
  if (const Device device = device_of(args.model); device.is_cuda()) {
    print_error_text(fmt::format("gpu      {:10.1f} MiB at the peak\n", mib(peak_memory(device))));
  }
}

void print_batch_rows(const BatchProgress& progress) {
  print_error_text(
      fmt::format("batch    {:10} of {} lines; {} failed, {} done before\n"
                  "overall  {:10} tokens {:9.1f} tokens/s\n",
                  progress.done, progress.lines, progress.failed, progress.before, progress.tokens,
                  per_second(progress.tokens, progress.seconds)));
}

int64_t max_requests(const RunArgs& args) {
  return args.parallel.value_or(args.prompts ? kBatchParallel : args.generation.samples);
}

EngineOptions options_of(const RunArgs& args) {
  EngineOptions options = engine_size_options(args.engine, max_requests(args));
  options.warm_up = args.warm_up;
  return options;
}

Engine load(const RunArgs& args, spdlog::logger& log) {
  return load_engine(args.model, options_of(args), log);
}

MemoryFit fit_of(const OpenDirectory& directory, const RunArgs& args, const ModelConfig& config,
                 EngineOptions options) {
  const Checkpoint checkpoint(directory);
  const WeightStore store(checkpoint);
  ProgressBar bar("encoding", !args.model.quiet);
  options.progress = show_in(bar);
  return fit_memory(config, weight_dtype(checkpoint, options.device, options.dtype), options,
                    {.store = &store});
}

void print_fit(const RunArgs& args) {
  catch_interrupts();
  const OpenDirectory directory = open_model_directory(args.model.model);
  const ModelConfig config = read_model_config(directory);
  ModelArgs model = args.model;
  model.on_planned_gpus = args.engine.gpu_memory > 0;
  const EngineOptions options = engine_options(model, options_of(args));
  const MemoryFit fit = fit_of(directory, args, config, options);
  std::cout << (args.json ? fit_json(config, options, fit) : fit_table(config, options, fit))
            << std::flush;
  require(std::cout.good(), "cannot write to standard output");
}

// All that the results of a batch depend on, except for the prompts. How many requests are computed
// at once and where kernels come from is not: a run that ended for want of memory goes on with
// less.
RunEntries run_entries(const OpenDirectory& directory, const RunArgs& args, const Prompt& defaults,
                       int64_t context_size) {
  const EngineOptions options = engine_options(args.model, options_of(args));
  const Checkpoint checkpoint(directory);
  RunEntries entries{
      {"--device", options.device.is_cuda() ? "cuda" : "cpu"},
      {"--dtype", std::string(name_of(weight_dtype(checkpoint, options.device, options.dtype)))},
      {"--weight-format", args.model.weight_format},
      {"--ctx-size", fmt::format("{}", context_size)},
      {"--deterministic", fmt::format("{}", args.engine.deterministic)},
      {"--parse-special", fmt::format("{}", args.parse_special)},
  };
  if (!options.records.empty()) {
    entries.emplace("--records", options.records);
  }
  if (options.kv_dtype == DType::f16) {
    entries.emplace("--kv-dtype", "f16");  // runs of versions without the flag have f32
  }
  if (const int ranks = args.model.ranks.ranks(); ranks > 1) {
    entries.emplace("--tensor-parallel", fmt::format("{}", ranks));
  }
  if (const ModelConfig config = config_to_run(read_model_config(directory), options);
      config.activation_sparsity.mode != ActivationSparsity::Mode::off) {
    entries.emplace("--activation-sparsity", to_json(config.activation_sparsity));
  }
  entries.merge(generation_entries(defaults));
  entries.merge(model_entries(checkpoint));
  return entries;
}

// What can be found out about an older run without loading the model.
void start_batch(Batch& batch, const OpenDirectory& directory, const RunArgs& args) {
  const ModelConfig config = read_model_config(directory);
  const int64_t context_size = choose_context_size(options_of(args), config);
  const Prompt defaults = make_prompt(args.generation, read_generation_defaults(directory));
  RunEntries entries = run_entries(directory, args, defaults, context_size);
  if (!batch.has_results()) {
    return batch.start(std::move(entries), defaults, {});
  }
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(directory);
  const ResultCheck check(*tokenizer, config, context_size, args.parse_special);
  batch.start(std::move(entries), defaults,
              [&check](std::string_view line, const PromptLine& prompt, int64_t number) {
                check.require_result(line, prompt, number);
              });
}

void run_batch(const RunArgs& args, spdlog::logger& log) {
  if (*args.prompts == "-") {
    throw UsageError("--prompts reads its file twice, so it cannot be standard input");
  }
  if (*args.output == "-") {
    throw UsageError(
        "--output - is no file: results go to one that has its name when they are complete; give "
        "its name, ./- if it is to be that");
  }
  catch_interrupts();
  Batch batch({.prompts = *args.prompts,
               .output = *args.output,
               .force = args.force,
               .resume = args.resume,
               .parse_special = args.parse_special});
  const OpenDirectory directory = open_model_directory(args.model.model);
  start_batch(batch, directory, args);
  const std::string output = batch.output().string();
  if (batch.complete()) {
    if (!args.model.quiet) {
      print_error_text(fmt::format("{}: {} is complete already\n", kTool, output));
    }
    return;
  }
  log.info("{} prompts, of which {} have their results in {} already", batch.progress().lines,
           batch.progress().before, quote(batch.partial().string()));
  Engine engine = load_engine(directory, args.model, options_of(args), log);
  const Prompt defaults = make_prompt(args.generation, engine.generation_defaults());
  engine.check(defaults.request);
  try {
    ProgressBar bar("batch", !args.model.quiet);
    batch.run(engine, defaults, max_requests(args), [&bar](const BatchProgress& progress) {
      bar.update(progress.done, progress.lines,
                 fmt::format("{} of {} lines, {:.0f} tokens/s", progress.done, progress.lines,
                             per_second(progress.tokens, progress.seconds)));
    });
  } catch (const Interrupted&) {
    if (!args.model.quiet) {
      print_error_text(fmt::format("{}: {} of {} lines are in {}; --resume goes on\n", kTool,
                                   batch.progress().done, batch.progress().lines,
                                   batch.partial().string()));
    }
    throw;
  } catch (const Error& error) {
    fail("{}; {} of {} lines are done, --resume goes on", error.what(), batch.progress().done,
         batch.progress().lines);
  }
  if (!args.model.quiet) {
    print_closing_table(engine, args);
    print_batch_rows(batch.progress());
  }
  if (batch.progress().failed > 0) {
    report_error(kTool, fmt::format("{} of {} lines failed; {} says why", batch.progress().failed,
                                    batch.progress().lines, output));
  }
}

// From a terminal: a prompt a line, until end of file or Ctrl-C. While a text is made, Ctrl-C ends
// that text alone.
void read_prompts(Engine& engine, const RunArgs& args, Prompt& prompt,
                  const ContinuationOptions& options) {
  const auto show = [&](const char* text) {
    if (!args.model.quiet) {
      print_error_text(text);
    }
  };
  show("A prompt a line; Ctrl-C ends a text, Ctrl-D the program.\n");
  std::string line;
  while (!interrupted()) {
    show("> ");
    if (!read_line(std::cin, line)) {
      show("\n");
      return;
    }
    if (line.empty()) {
      continue;
    }
    prompt.text = line;
    try {
      continue_prompt(engine, prompt, options);
    } catch (const DeviceLost&) {
      throw;
    } catch (const Error& error) {
      report_error(kTool, error.what());  // the next prompt may do better
    }
    forget_interrupt();
  }
}

void run_prompt(const RunArgs& args, spdlog::logger& log) {
  if (args.generation.log_probs && !args.json) {
    throw UsageError("--logprobs needs --json or --prompts");
  }
  open_model_directory(args.model.model);  // its mistakes are said before stdin is read
  std::optional<std::string> text = args.prompt;
  if (args.file) {
    text = *args.file == "-" ? read_stdin() : read_prompt_file(*args.file);
  } else if (!text && ::isatty(STDIN_FILENO) != 1) {
    text = read_stdin();
  }
  Engine engine = load(args, log);
  const ContinuationOptions options{.parse_special = args.parse_special, .json = args.json};
  Prompt prompt = make_prompt(args.generation, engine.generation_defaults());
  if (text) {
    prompt.text = text;
    continue_prompt(engine, prompt, options);
  } else {
    read_prompts(engine, args, prompt, options);
  }
  if (!args.model.quiet) {
    print_closing_table(engine, args);
  }
  throw_if_interrupted();
}

void run(const RunArgs& args) {
  make_prompt(args.generation, {});  // what is wrong with the flags is said before all else
  check_model_args(args.model);
  check_engine_args(args.engine, max_requests(args));
  const std::unique_ptr<spdlog::logger> log = make_log(kTool, args.model);
  warn_about_device(args.model.device, *log);
  if (args.fit) {
    return print_fit(args);
  }
  if (args.prompts) {
    run_batch(args, *log);
  } else {
    run_prompt(args, *log);
  }
}

}  // namespace
}  // namespace sparsellm

int main(int argc, char** argv) {
  CLI::App app("Continues texts with a language model.", sparsellm::kTool);
  sparsellm::RunArgs args;
  sparsellm::add_run_args(app, args);
  return sparsellm::tool_main(app, argc, argv, [&] {
    sparsellm::with_ranks(
        sparsellm::kTool, args.model,
        [&args] { return std::vector{sparsellm::checkpoint_rank_model(args.model)}; },
        [&args] { sparsellm::run(args); });
  });
}
