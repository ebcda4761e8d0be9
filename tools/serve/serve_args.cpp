#include "tools/serve/serve_args.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "tools/cli/tool_main.h"

namespace sparsellm {

void add_serve_args(CLI::App& app, ServeArgs& args) {
  add_model_args(app, args.model);
  add_rank_args(app, args.model.ranks);
  CLI::Option* const host =
      app.add_option("--host", args.host, "Address to listen on; 0.0.0.0: all of the machine's")
          ->check(not_empty())
          ->capture_default_str();
  CLI::Option* const port =
      app.add_option("--port", args.port, "Port to listen on; 0: one that is free")
          ->capture_default_str();
  app.add_option("--unix", args.unix_path, "Socket file to listen on, instead of host and port")
      ->check(not_empty())
      ->excludes(host)
      ->excludes(port);
  app.add_option("--served-model-name", args.served_model_name,
                 "Name of the model for requests [that of its directory]")
      ->check(not_empty());
  app.add_option("--api-key-file", args.api_key_file,
                 "File with the keys that requests need one of, a key a line")
      ->check(not_empty());
  app.add_option("--parallel", args.parallel, "Continuations computed at once")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 16))
      ->capture_default_str();
  app.add_option("--max-queued", args.max_queued, "Continuations that may wait; more are refused")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 20))
      ->capture_default_str();
  app.add_option("--max-connections", args.max_connections, "Connections at a time")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 16))
      ->capture_default_str();
  app.add_option_function<std::string>(
         "--max-body",
         [&args](const std::string& text) { args.max_body = parse_size("--max-body", text); },
         "Bytes of a request's body at most [16M]")
      ->type_name("SIZE");
  app.add_option("--request-timeout", args.request_timeout,
                 "Seconds after which a request is ended [none]")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31));
  app.add_option("--drain-seconds", args.drain_seconds,
                 "After Ctrl-C or SIGTERM: seconds in which requests may finish")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 31))
      ->capture_default_str();
  app.add_option("--cors-origin", args.cors_origin,
                 "Origin whose pages may use the server, such as https://example.org; *: any")
      ->check(not_empty());
  app.add_option("--layers-report", args.layers_report,
                 "Times of the model's linear layers, for the page and /layers: what "
                 "sparsellm-bench layers --output json has printed for it")
      ->type_name("FILE")
      ->check(not_empty());
  add_engine_args(app, args.engine);
  app.add_flag("--warm-up,!--no-warm-up", args.warm_up,
               "Capture the CUDA graphs of all batch sizes while loading; without, each in the "
               "first step that needs it [yes]");
}

void check_serve_args(const ServeArgs& args) {
  check_model_args(args.model);
  check_engine_args(args.engine, args.parallel);
  const bool visible = std::all_of(args.cors_origin.begin(), args.cors_origin.end(),
                                   [](char c) { return c > ' ' && c < 0x7f; });
  if (!visible) {
    throw UsageError("--cors-origin has characters other than visible ASCII");
  }
}

}  // namespace sparsellm
