#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tools/cli/args.h"
#include "tools/cli/cli_fwd.h"
#include "tools/cli/engine_args.h"

namespace sparsellm {

struct ServeArgs {
  ModelArgs model;
  EngineArgs engine;
  std::string host = "127.0.0.1";
  uint16_t port = 8000;
  std::string unix_path;
  std::string served_model_name;  // empty: the model's directory
  std::string api_key_file;
  int64_t parallel = 64;
  int64_t max_queued = 1024;
  int64_t max_connections = 4096;
  int64_t max_body = int64_t{16} << 20;
  std::optional<int64_t> request_timeout;  // seconds
  int64_t drain_seconds = 30;
  std::string cors_origin;
  std::string layers_report;  // file; empty: none
  bool warm_up = true;
};
void add_serve_args(CLI::App& app, ServeArgs& args);
// Throws UsageError for flags that have no meaning with others.
void check_serve_args(const ServeArgs& args);

}  // namespace sparsellm
