// Serves a model by OpenAI's HTTP API: sparsellm-serve -m MODEL.

#include <spdlog/logger.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "sparsellm_version.h"
#include "tools/cli/api_keys.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/tool_main.h"
#include "tools/cli/with_ranks.h"
#include "tools/serve/layer_table.h"
#include "tools/serve/layers_report.h"
#include "tools/serve/serve_args.h"
#include "tools/serve/server.h"

namespace sparsellm {
namespace {

constexpr char kTool[] = "sparsellm-serve";
constexpr int kSignalCodes = 128;  // of tool_main: what lies above is a signal

std::string model_name(const ServeArgs& args) {
  if (!args.served_model_name.empty()) {
    return args.served_model_name;
  }
  const std::filesystem::path path = std::filesystem::weakly_canonical(args.model.model);
  return path.filename().empty() ? "model" : path.filename().string();
}

ServerOptions server_options(const ServeArgs& args) {
  ServerOptions options{
      .http = {.host = args.host,
               .port = args.port,
               .unix_path = args.unix_path,
               .max_connections = args.max_connections,
               .max_body = args.max_body},
      .access = {},
      .limits = {.samples = args.parallel + args.max_queued},
      .model = model_name(args),
      .version = kVersion,
      .drain = std::chrono::seconds(args.drain_seconds),
  };
  if (args.request_timeout) {
    options.limits.timeout = std::chrono::seconds(*args.request_timeout);
  }
  if (!args.api_key_file.empty()) {
    options.access.keys = read_api_keys(args.api_key_file);
  }
  if (!args.cors_origin.empty()) {
    options.access.cors_origin = args.cors_origin;
  }
  return options;
}

// A connection is a file descriptor, of which a process may have 1,024 where nobody says otherwise.
void allow_connections(int64_t connections, spdlog::logger& log) {
  constexpr int64_t kOthers = 256;
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return;
  }
  const auto wanted = static_cast<rlim_t>(connections + kOthers);
  if (limit.rlim_cur < wanted) {
    limit.rlim_cur = std::min(wanted, limit.rlim_max);
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  if (limit.rlim_cur < wanted) {
    log.warn("--max-connections {}: the process may have {} open files (ulimit -n)", connections,
             limit.rlim_cur);
  }
}

std::optional<LayersReport> layers_report(const ServeArgs& args) {
  return args.layers_report.empty() ? std::nullopt
                                    : std::optional(read_layers_report(args.layers_report));
}

LayerTable layer_table(const Engine& engine, const ServeArgs& args,
                       const std::optional<LayersReport>& report) {
  LayerTable table = layer_table_of(engine.block_weights(), args.model.ranks.ranks());
  if (report) {
    add_layer_times(*report, table);
  }
  return table;
}

void run(const ServeArgs& args) {
  check_serve_args(args);
  const std::unique_ptr<spdlog::logger> log = make_log(kTool, args.model);
  warn_about_device(args.model.device, *log);
  catch_interrupts();
  const auto report = [](std::string_view text) { report_error(kTool, text); };
  const ServerOptions options = server_options(args);
  allow_connections(args.max_connections, *log);
  const std::optional<LayersReport> report_of_layers = layers_report(args);
  Server server(options, interrupted, report);
  if (!server.on_loopback() && options.access.keys.empty()) {
    log->warn("{} may be reached from other machines, and no key is asked for (--api-key-file)",
              server.address());
  }
  EngineOptions engine_options = engine_size_options(args.engine, args.parallel);
  engine_options.warm_up = args.warm_up;
  Engine engine = load_engine(args.model, engine_options, *log);
  const std::unique_ptr<ServedEngine> loaded = served(engine);
  const ServedModel model{.engine = *loaded,
                          .tokenizer = engine.tokenizer(),
                          .context_size = engine.context_size(),
                          .defaults = engine.generation_defaults(),
                          .weights = engine.linear_weights(),
                          .layers = layer_table(engine, args, report_of_layers)};
  if (!args.model.quiet) {
    print_error_text(fmt::format("{} is served at {}\n", options.model, server.address()));
  }
  require(server.serve(model), "the model's device is lost");
}

}  // namespace
}  // namespace sparsellm

int main(int argc, char** argv) {
  CLI::App app("Serves a language model by OpenAI's HTTP API.", sparsellm::kTool);
  sparsellm::ServeArgs args;
  sparsellm::add_serve_args(app, args);
  const int code = sparsellm::tool_main(app, argc, argv, [&] {
    sparsellm::with_ranks(
        sparsellm::kTool, args.model,
        [&args] { return std::vector{sparsellm::checkpoint_rank_model(args.model)}; },
        [&args] { sparsellm::run(args); });
  });
  // A server that is told to end while it loads has done what it should, as one that serves has.
  const bool ended = sparsellm::interrupted() && code > sparsellm::kSignalCodes;
  return ended ? 0 : code;
}
