// Judges models: sparsellm-eval perplexity -m MODEL --text FILE.

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/base/mapped_file.h"
#include "tools/args.h"
#include "tools/interrupt.h"
#include "tools/perplexity.h"
#include "tools/progress_bar.h"
#include "tools/tool_main.h"

namespace sparsellm {
namespace {

constexpr int64_t kMaxTextBytes = 1 << 30;
// Windows that are computed together; more gains nothing and takes KV cache.
constexpr int64_t kWindowsAtOnce = 8;

struct PerplexityArgs {
  ModelArgs model;
  std::string text;
  int64_t context = 512;
  std::string protocol = "windows";
  bool json = false;
};

const std::map<std::string, PerplexityProtocol> kProtocols{
    {"windows", PerplexityProtocol::windows}, {"llama.cpp", PerplexityProtocol::llama_cpp}};

CLI::App* add_perplexity(CLI::App& app, PerplexityArgs& args) {
  CLI::App* command =
      app.add_subcommand("perplexity", "Perplexity of a text with its standard error");
  add_model_args(*command, args.model);
  command->add_option("--text", args.text, "Text file to score")->required();
  command->add_option("--context", args.context, "Tokens of a window")
      ->check(CLI::Range(int64_t{4}, int64_t{1} << 31))
      ->capture_default_str();
  command
      ->add_option("--protocol", args.protocol,
                   "windows: BOS and context - 1 tokens, all scored; llama.cpp: context tokens, "
                   "the second half scored")
      ->check(CLI::IsMember({"windows", "llama.cpp"}))
      ->capture_default_str();
  command->add_flag("--json", args.json, "Print one JSON object");
  return command;
}

void perplexity(const PerplexityArgs& args) {
  const std::string text = read_text_file(args.text, kMaxTextBytes);
  require(!text.empty(), "the text file {} is empty", args.text);
  EngineOptions options;
  options.max_requests = kWindowsAtOnce;
  options.context_size = args.context;
  Engine engine = load_engine(args.model, options);

  Perplexity result;
  {
    ProgressBar bar("scoring", !args.model.quiet);
    result = measure_perplexity(engine, text, args.context, kProtocols.at(args.protocol),
                                [&bar](int64_t done, int64_t total) {
                                  throw_if_interrupted();
                                  bar.update(done, total, fmt::format("of {} windows", total));
                                });
  }
  const double speed = static_cast<double>(result.tokens) / result.seconds;
  if (args.json) {
    const nlohmann::ordered_json report{
        {"model", args.model.model},       {"text", args.text},
        {"protocol", args.protocol},       {"context", args.context},
        {"windows", result.windows},       {"tokens", result.tokens},
        {"perplexity", result.perplexity}, {"standard_error", result.standard_error},
        {"tokens_per_second", speed}};
    fmt::print("{}\n", report.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    return;
  }
  fmt::print("perplexity  {:.4f} +- {:.4f}\n", result.perplexity, result.standard_error);
  fmt::print("protocol    {}, context {}\n", args.protocol, args.context);
  fmt::print("scored      {} tokens in {} windows, {:.0f} tokens/s\n", result.tokens,
             result.windows, speed);
}

}  // namespace
}  // namespace sparsellm

int main(int argc, char** argv) {
  CLI::App app("Judges language models.", "sparsellm-eval");
  app.require_subcommand(1);
  sparsellm::PerplexityArgs args;
  const CLI::App* perplexity = sparsellm::add_perplexity(app, args);
  return sparsellm::tool_main(app, argc, argv, [&] {
    if (perplexity->parsed()) {
      sparsellm::perplexity(args);
    }
  });
}
