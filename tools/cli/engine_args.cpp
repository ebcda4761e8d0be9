#include "tools/cli/engine_args.h"

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <string>

#include "tools/cli/args.h"
#include "tools/cli/tool_main.h"

namespace sparsellm {

void add_engine_args(CLI::App& app, EngineArgs& args) {
  app.add_option("-c,--ctx-size", args.context_size,
                 "Tokens of prompt and continuation; 0: the model's maximum")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 31))
      ->capture_default_str();
  app.add_option("-b,--batch-size", args.step_tokens, "Tokens computed in one step")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  app.add_option_function<std::string>(
         "--kv-memory",
         [&args](const std::string& text) { args.kv_bytes = parse_size("--kv-memory", text); },
         "Bytes of the KV cache, e.g. 512M or 8G (powers of 1024; MB of 1000) [--parallel full "
         "contexts, at most half of the "
         "memory, or what is left of the GPU's]")
      ->type_name("SIZE");
  app.add_option("--gpu-memory-utilization", args.gpu_memory_utilization,
                 "Share of the GPU's memory to take at most")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str();
  add_gpu_memory_arg(app, args.gpu_memory);
  app.add_flag("--deterministic", args.deterministic,
               "The bits of a result do not depend on what else is computed; the CPU device is "
               "always so");
}

void check_engine_args(const EngineArgs& args, int64_t max_requests) {
  if (args.step_tokens < max_requests) {
    throw UsageError(
        fmt::format("--batch-size {} is less than --parallel {}", args.step_tokens, max_requests));
  }
}

EngineOptions engine_size_options(const EngineArgs& args, int64_t max_requests) {
  EngineOptions options;
  options.context_size = args.context_size;
  options.max_requests = max_requests;
  options.step_tokens = args.step_tokens;
  options.kv_bytes = args.kv_bytes;
  options.gpu_memory_utilization = args.gpu_memory_utilization;
  options.gpu_memory = args.gpu_memory;
  options.deterministic = args.deterministic;
  return options;
}

}  // namespace sparsellm
