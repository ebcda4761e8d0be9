#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "tools/cli/cli_fwd.h"
#include "tools/cli/progress_bar.h"
#include "tools/cli/rank_args.h"

namespace sparsellm {

// The flags that say which model runs where; shared by all tools.
struct ModelArgs {
  std::string model;
  std::string device = "auto";
  std::string dtype = "auto";
  std::string kv_dtype;    // empty: f32 on the CPU
  std::string tune_cache;  // empty: where the user's caches are
  bool tunes = true;
  std::string weight_format = "stored";
  std::string records;  // sparse/records_choice.h
  ActivationSparsityRequest activation_sparsity;
  bool verify = false;
  int threads = 0;
  std::string cpu_isa = "auto";
  bool quiet = false;
  bool verbose = false;
  RankArgs ranks = {};
  bool on_planned_gpus = false;  // kPlannedGpu for each rank, whatever `device` says
};

// Of the ranks in this process, which the flags name: one, or of ranks that are threads all. Throws
// UsageError and Error for those that cannot be.
std::vector<Device> devices_of(const ModelArgs& args);
Device device_of(const ModelArgs& args);  // the first of them
// "cuda:1", "cpu, 2 ranks", "cuda:2, cuda:3", for messages and reports.
std::string devices_text(const ModelArgs& args);

// Checks that the text of an option is not empty.
CLI::Validator not_empty();
// Checks that an option is an integer from 0 to 2^62. As one of uint64_t CLI11 would take -1, and
// all that are too large, for the largest.
CLI::Validator is_seed();
// Checks that the text of an option is that of a layout of general_sparse.
CLI::Validator is_layout();

// --records, for sparse/records_choice.h.
CLI::Option* add_records_arg(CLI::App& app, std::string& records);
// Throws UsageError for --records where no weight comes to be in tca_bme by the format that `flag`
// names.
void check_records_arg(const std::string& records, std::string_view flag, std::string_view format);

// --cpu-isa, for parse_cpu_isa().
void add_cpu_isa_arg(CLI::App& app, std::string& isa);
void add_model_args(CLI::App& app, ModelArgs& args);
// Throws UsageError for flags that have no meaning with others.
void check_model_args(const ModelArgs& args);

// --gpu-memory, in bytes.
void add_gpu_memory_arg(CLI::App& app, int64_t& bytes);

// Writes "<tool>: <level>: <message>" to stderr: errors with --quiet, warnings too without it,
// everything with --verbose.
std::unique_ptr<spdlog::logger> make_log(const std::string& tool, const ModelArgs& args);

// Says why the device "auto" is the CPU where that is not to be expected; for each tool once.
// `device`: the text of --device.
void warn_about_device(const std::string& device, spdlog::logger& log);

// The options that the flags stand for.
EngineOptions engine_options(const ModelArgs& args, EngineOptions options);

// Draws in the bar, which has to outlive it, and throws Interrupted after Ctrl-C if that is caught.
LoadProgress show_in(ProgressBar& bar);

// Loads with a progress bar; `options` carries what is not in args. `log` has to outlive the
// engine.
Engine load_engine(const ModelArgs& args, EngineOptions options, spdlog::logger& log);
// The same of a directory that is open already: that of `args`.
Engine load_engine(const OpenDirectory& directory, const ModelArgs& args, EngineOptions options,
                   spdlog::logger& log);

inline double mib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

// Bytes of "512M": K, M, G, T (or KiB, ...) are powers of 1024, KB, MB, GB, TB of 1000, in any
// case; "1.5G" is cut to whole bytes. Throws UsageError that names `flag` for anything else and for
// less than 1.
int64_t parse_size(const std::string& flag, const std::string& text);

}  // namespace sparsellm
