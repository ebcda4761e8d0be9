#include "tools/bench/commands/options.h"

#include <spdlog/logger.h>

#include <CLI/CLI.hpp>
#include <map>
#include <memory>

#include "kernels/base/parallel.h"
#include "tools/bench/commands/command.h"
#include "tools/cli/args.h"

namespace sparsellm {

CLI::Validator is_count() { return CLI::Range(int64_t{1}, int64_t{1} << 24); }

void add_copies(CLI::App& command, int64_t& mib) {
  command
      .add_option("--copies-mib", mib,
                  "MiB of copies of a weight that take turns, so that none stays in the cache")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
}

void add_dtype(CLI::App& command, std::string& dtype, const char* description) {
  command.add_option("--dtype", dtype, description)
      ->check(CLI::IsMember({"f16", "bf16"}))
      ->capture_default_str();
}

void add_seed(CLI::App& command, uint64_t& seed, const char* description) {
  command.add_option("--seed", seed, description)->check(is_seed())->capture_default_str();
}

void add_threads(CLI::App& command, int& threads) {
  command
      .add_option("-t,--threads", threads,
                  "Threads of the CPU device; 0: one for each core that it may use")
      ->check(CLI::Range(0, ThreadPool::kMaxThreads))
      ->capture_default_str();
}

std::function<void(const std::string&)> warnings_to_stderr() {
  return [log = std::shared_ptr<spdlog::logger>(make_log(kTool, {}))](const std::string& line) {
    log->warn("{}", line);
  };
}

DType dtype_named(const std::string& name) {
  const std::map<std::string, DType> dtypes{
      {"f32", DType::f32}, {"f16", DType::f16}, {"bf16", DType::bf16}};
  return dtypes.at(name);
}

}  // namespace sparsellm
