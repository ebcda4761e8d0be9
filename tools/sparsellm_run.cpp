// Generates text: sparsellm-run -m MODEL -p "Once upon a time".

#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/mapped_file.h"
#include "tools/args.h"
#include "tools/interrupt.h"
#include "tools/tool_main.h"

namespace sparsellm {
namespace {

constexpr int64_t kMaxPromptFileBytes = 64 << 20;

// Names and defaults are llama.cpp's.
struct RunArgs {
  ModelArgs model;
  std::optional<std::string> prompt;
  std::optional<std::string> file;
  int64_t max_tokens = -1;
  std::optional<float> temperature;
  std::optional<int32_t> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  int64_t seed = -1;
  bool ignore_eos = false;
  int64_t context_size = 0;
  bool echo = false;
  bool parse_special = false;
};

void add_run_args(CLI::App& app, RunArgs& args) {
  add_model_args(app, args.model);
  auto* prompt = app.add_option("-p,--prompt", args.prompt,
                                "Text to continue; without it and --file: lines from a terminal, "
                                "or all of a redirected stdin");
  app.add_option("-f,--file", args.file,
                 "File with the text to continue; one newline at its end "
                 "is dropped")
      ->excludes(prompt);
  app.add_option("-n,--predict,--n-predict", args.max_tokens,
                 "Tokens to generate; -1: until the end of the text or of the context")
      ->check(CLI::Range(int64_t{-1}, int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--temp", args.temperature,
                 "Temperature; 0 is greedy [generation_config.json, else 0.8]");
  app.add_option("--top-k", args.top_k,
                 "Keep the K likeliest tokens; 0: all [generation_config.json, else 40]");
  app.add_option("--top-p", args.top_p,
                 "Keep the likeliest tokens of probability P together [generation_config.json, "
                 "else 0.95]");
  app.add_option("--min-p", args.min_p,
                 "Keep tokens with P times the probability of the likeliest "
                 "[generation_config.json, else 0.05]");
  app.add_option("-s,--seed", args.seed, "Seed of the sampling; -1: a fresh one")
      ->check(CLI::Range(int64_t{-1}, int64_t{1} << 62))
      ->capture_default_str();
  app.add_flag("--ignore-eos", args.ignore_eos, "Never choose the end of the text");
  app.add_option("-c,--ctx-size", args.context_size,
                 "Tokens of prompt and continuation; 0: the model's maximum")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 31))
      ->capture_default_str();
  app.add_flag("--echo", args.echo, "Print the prompt in front of the continuation");
  app.add_flag("--parse-special", args.parse_special,
               "Control tokens written in the prompt count as such, not as text");
}

// Throws UsageError for values out of range, before any model is loaded.
SamplingParams sampling(const RunArgs& args, const GenerationDefaults& defaults) {
  const bool greedy_by_default = defaults.do_sample.has_value() && !*defaults.do_sample;
  const float temperature = greedy_by_default ? 0.0f : defaults.temperature.value_or(0.8f);
  const SamplingParams params{
      .temperature = args.temperature.value_or(temperature),
      .top_k = args.top_k.value_or(defaults.top_k.value_or(40)),
      .top_p = args.top_p.value_or(defaults.top_p.value_or(0.95f)),
      .min_p = args.min_p.value_or(defaults.min_p.value_or(0.05f)),
  };
  try {
    validate(params);
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
  return params;
}

std::string read_prompt_file(const std::string& path) {
  std::string text = read_text_file(path, kMaxPromptFileBytes);
  if (text.ends_with('\n')) {
    text.pop_back();
  }
  require(!text.empty(), "the prompt file {} is empty", path);
  return text;
}

std::string read_stdin() {
  std::string text;
  std::vector<char> block(1 << 16);
  while (std::cin.read(block.data(), static_cast<std::streamsize>(block.size())),
         std::cin.gcount() > 0) {
    text.append(block.data(), static_cast<size_t>(std::cin.gcount()));
    require(std::ssize(text) <= kMaxPromptFileBytes,
            "the prompt on standard input is longer than {} bytes", kMaxPromptFileBytes);
  }
  if (text.ends_with('\n')) {
    text.pop_back();
  }
  require(!text.empty(), "the prompt on standard input is empty");
  return text;
}

void write_out(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
  require(std::ferror(stdout) == 0, "cannot write to standard output");
}

void continue_text(Engine& engine, const RunArgs& args, const SamplingParams& params,
                   const std::string& prompt) {
  Request request;
  request.prompt = engine.tokenizer().encode(
      prompt, {.add_special_tokens = true, .parse_special = args.parse_special});
  request.sampling = params;
  request.max_tokens = args.max_tokens;
  request.ignore_eos = args.ignore_eos;
  if (args.seed >= 0) {
    request.seed = static_cast<uint64_t>(args.seed);
  }
  std::string error;
  const int64_t id = engine.submit(std::move(request), [&](const TokenEvent& event) {
    write_out(event.text);
    error = event.error;
  });
  try {
    if (args.echo) {
      write_out(prompt);
    }
    while (engine.step()) {
      if (interrupted()) {
        engine.cancel(id);
      }
    }
  } catch (...) {
    engine.cancel(id);  // its callback refers to this call's variables
    throw;
  }
  write_out("\n");
  require(error.empty(), "{}", error);
}

double mib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

double per_second(int64_t tokens, double seconds) {
  return seconds > 0.0 ? static_cast<double>(tokens) / seconds : 0.0;
}

void print_closing_table(const Engine& engine, const RunArgs& args) {
  const EngineStats& stats = engine.stats();
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  print_error_text(
      fmt::format("\n"
                  "model    {}, {} layers, on {}, context {}\n"
                  "load     {:10.3f} s {:14.1f} MiB of weights\n"
                  "prefill  {:10} tokens {:9.1f} tokens/s\n"
                  "decode   {:10} tokens {:9.1f} tokens/s\n"
                  "memory   {:10.1f} MiB at the peak; KV cache of up to {:.1f} MiB\n",
                  engine.config().architecture, engine.config().num_layers,
                  to_string(parse_device(args.model.device)), engine.context_size(),
                  stats.load_seconds, mib(stats.weight_bytes), stats.prefill_tokens,
                  per_second(stats.prefill_tokens, stats.prefill_seconds), stats.decode_tokens,
                  per_second(stats.decode_tokens, stats.decode_seconds),
                  static_cast<double>(usage.ru_maxrss) / 1024.0, mib(stats.kv_bytes)));
}

// From a terminal: a prompt a line, until end of file or Ctrl-C.
void read_prompts(Engine& engine, const RunArgs& args, const SamplingParams& params) {
  const auto show = [&](const char* text) {
    if (!args.model.quiet) {
      print_error_text(text);
    }
  };
  std::string line;
  while (!interrupted()) {
    show("> ");
    if (!std::getline(std::cin, line)) {
      show("\n");
      return;
    }
    if (line.empty()) {
      continue;
    }
    try {
      continue_text(engine, args, params, line);
    } catch (const Error& error) {
      report_error("sparsellm-run", error.what());  // the next prompt may do better
    }
  }
}

void run(const RunArgs& args) {
  sampling(args, {});
  std::optional<std::string> prompt = args.prompt;
  if (args.file) {
    prompt = read_prompt_file(*args.file);
  } else if (!prompt && ::isatty(STDIN_FILENO) != 1) {
    prompt = read_stdin();
  }

  EngineOptions options;
  options.context_size = args.context_size;
  options.max_requests = 1;
  Engine engine = load_engine(args.model, options);
  const SamplingParams params = sampling(args, engine.generation_defaults());
  if (prompt) {
    continue_text(engine, args, params, *prompt);
  } else {
    read_prompts(engine, args, params);
  }
  if (!args.model.quiet) {
    print_closing_table(engine, args);
  }
  throw_if_interrupted();
}

}  // namespace
}  // namespace sparsellm

int main(int argc, char** argv) {
  CLI::App app("Continues a text with a language model.", "sparsellm-run");
  sparsellm::RunArgs args;
  sparsellm::add_run_args(app, args);
  return sparsellm::tool_main(app, argc, argv, [&] { sparsellm::run(args); });
}
