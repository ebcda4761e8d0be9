#include "tools/cli/args.h"

#include <spdlog/fmt/ranges.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/base/json_reader.h"
#include "kernels/base/usable_cores.h"
#include "kernels/paged_kv.h"
#include "models/storage/model_directory.h"
#include "sparse/general_sparse/format/layout.h"
#include "sparse/records_choice.h"
#include "sparse/registry.h"
#include "tools/cli/activation_sparsity_args.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/progress_bar.h"
#include "tools/cli/rank_session.h"
#include "tools/cli/tool_main.h"

namespace sparsellm {
namespace {

void log_engine(const Engine& engine, const ModelArgs& args, spdlog::logger& log) {
  const EngineStats& stats = engine.stats();
  log.info("model {}: {}, {} layers, {:.1f} MiB of weights, loaded in {:.3f} s", quote(args.model),
           engine.config().architecture, engine.config().num_layers, mib(stats.weight_bytes),
           stats.load_seconds);
  log.info("device {}, {} threads{}; context of {} tokens; KV cache of {} tokens, {:.1f} MiB",
           devices_text(args), args.threads > 0 ? args.threads : usable_cores(),
           device_of(args).is_cuda() ? std::string()
                                     : fmt::format(", {}", name_of(parse_cpu_isa(args.cpu_isa))),
           engine.context_size(), engine.total_pages() * kPageSize, mib(stats.kv_bytes));
}

// Where the user keeps caches: the XDG base directory specification.
std::filesystem::path default_tune_cache() {
  std::filesystem::path folder;
  if (const char* const cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/') {
    folder = cache;
  } else if (const char* const home = std::getenv("HOME"); home != nullptr && *home == '/') {
    folder = std::filesystem::path(home) / ".cache";
  } else {
    return {};
  }
  return folder / "sparsellm" / "kernels.json";
}

}  // namespace

std::vector<Device> devices_of(const ModelArgs& args) {
  const RankArgs& ranks = args.ranks;
  if (args.on_planned_gpus) {
    return std::vector<Device>(static_cast<size_t>(ranks.ranks()), kPlannedGpu);
  }
  if (ranks.launched) {
    return {rank_device(args.device, ranks.launched->local_rank.value_or(ranks.launched->rank))};
  }
  return rank_devices(args.device, ranks.ranks());
}

Device device_of(const ModelArgs& args) { return devices_of(args).front(); }

std::string devices_text(const ModelArgs& args) {
  std::vector<std::string> names;
  for (const Device device : devices_of(args)) {
    names.push_back(to_string(device));
  }
  const int ranks = args.ranks.ranks();
  if (args.ranks.launched || names.front() == names.back()) {
    return ranks == 1 ? names.front() : fmt::format("{}, {} ranks", names.front(), ranks);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

CLI::Validator not_empty() {
  return CLI::Validator(
      [](const std::string& text) { return text.empty() ? "is empty" : std::string(); }, "");
}

CLI::Validator is_seed() { return CLI::Range(int64_t{0}, int64_t{1} << 62); }

CLI::Validator is_layout() {
  return CLI::Validator(
      [](const std::string& text) {
        try {
          general_sparse::layout_from(text);
        } catch (const Error& error) {
          return std::string(error.what());
        }
        return std::string();
      },
      "");
}

CLI::Option* add_records_arg(CLI::App& app, std::string& records) {
  CLI::Option* const goal =
      app.add_option(
             "--records", records,
             "What weights that become tca_bme are encoded for: speed, or size, which from 79 % "
             "zeros on takes up to a third fewer bytes [speed]")
          ->type_name("GOAL")
          ->check(CLI::IsMember({"speed", "size"}));
  app.add_option(
         "--values", records,
         "Round the values of weights that become tca_bme, or where auto or smallest choose their "
         "dense formats, dense_i8 or dense_i4: to i8 (8 bits, a scale a row), f8 (e4m3, likewise) "
         "or i4 (4 bits, a scale for each 128 columns of a row; i4:32, i4:64: for fewer) [16 bits, "
         "not rounded]")
      ->type_name("TYPE")
      ->check(CLI::IsMember({"i8", "f8", "i4", "i4:32", "i4:64", "i4:128"}))
      ->excludes(goal);
  return goal;
}

void check_records_arg(const std::string& records, std::string_view flag, std::string_view format) {
  if (records.empty() || may_be_records(format)) {
    return;
  }
  const bool narrow = has_narrow_values(records);
  if (narrow && always_rounds(format)) {
    if (!holds_values(format, records)) {
      throw UsageError(fmt::format("--values {} is not for {} {}", records, flag, format));
    }
    return;
  }
  throw UsageError(
      fmt::format("{} is not for {} {}", narrow ? "--values" : "--records", flag, format));
}

void add_cpu_isa_arg(CLI::App& app, std::string& isa) {
  app.add_option(
         "--cpu-isa", isa,
         "Instruction set of the products on the CPU: auto, the best that it has, portable, "
         "avx2 or avx512; results are the same")
      ->check(CLI::IsMember({"auto", "portable", "avx2", "avx512"}))
      ->type_name("ISA")
      ->capture_default_str();
}

void add_gpu_memory_arg(CLI::App& app, int64_t& bytes) {
  app.add_option_function<std::string>(
         "--gpu-memory",
         [&bytes](const std::string& text) { bytes = parse_size("--gpu-memory", text); },
         "As if the GPU, or each of several, had so much memory, e.g. 24G [what it has]")
      ->type_name("SIZE");
}

void add_model_args(CLI::App& app, ModelArgs& args) {
  app.add_option("-m,--model", args.model, "Model directory in Hugging Face format")
      ->required()
      ->check(not_empty());
  app.add_option("--device", args.device,
                 "auto, cpu, cuda or cuda:N; with --tensor-parallel also a list: cuda:2,cuda:3")
      ->capture_default_str();
  app.add_option("--dtype", args.dtype,
                 "What a GPU computes in: f16, bf16, or auto, that of the checkpoint")
      ->check(CLI::IsMember({"auto", "f16", "bf16"}))
      ->capture_default_str();
  app.add_option("--kv-dtype", args.kv_dtype,
                 "What the KV cache holds on the CPU: f32, or f16, which takes half of the memory; "
                 "on a GPU it has the dtype that this computes in [f32]")
      ->check(CLI::IsMember({"f32", "f16"}));
  auto* const cache =
      app.add_option("--tune-cache", args.tune_cache,
                     "File that keeps which kernels were the fastest on this machine's GPU "
                     "[sparsellm/kernels.json in the user's cache folder]")
          ->check(not_empty());
  app.add_flag("!--no-tune", args.tunes,
               "Choose kernels by rules instead of measuring them while the model is loaded")
      ->excludes(cache);
  std::vector<std::string> formats{"stored", std::string(kAutoFormat)};
  for (const WeightFormat* format : weight_formats()) {
    formats.emplace_back(format->name());
  }
  app.add_option("--weight-format", args.weight_format,
                 "Format of the linear layers' weights; others are converted while loading; auto: "
                 "for each kind of layers the fastest, which a GPU tries once")
      ->check(CLI::IsMember(formats))
      ->capture_default_str();
  add_records_arg(app, args.records);
  add_activation_sparsity_args(app, args.activation_sparsity);
  app.add_flag("--verify", args.verify,
               "Compare a converted model with its checksums before it is loaded");
  app.add_option("-t,--threads", args.threads,
                 "Threads of the CPU device; 0: one for each core that it may use")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  add_cpu_isa_arg(app, args.cpu_isa);
  auto* const quiet = app.add_flag("--quiet", args.quiet, "Nothing on stderr but errors");
  app.add_flag("-v,--verbose", args.verbose, "Say on stderr what is going on")->excludes(quiet);
}

void check_model_args(const ModelArgs& args) {
  check_records_arg(args.records, "--weight-format", args.weight_format);
}

std::unique_ptr<spdlog::logger> make_log(const std::string& tool, const ModelArgs& args) {
  auto log =
      std::make_unique<spdlog::logger>(tool, std::make_shared<spdlog::sinks::stderr_sink_mt>());
  log->set_pattern("%n: %l: %v");
  log->set_level(args.quiet     ? spdlog::level::err
                 : args.verbose ? spdlog::level::debug
                                : spdlog::level::warn);
  return log;
}

void warn_about_device(const std::string& device, spdlog::logger& log) {
  const std::string first = device.substr(0, device.find(','));
  if (const std::string warning = choose_device(first).warning; !warning.empty()) {
    log.warn("{}", warning);
  }
}

EngineOptions engine_options(const ModelArgs& args, EngineOptions options) {
  const RankArgs& ranks = args.ranks;
  std::vector<Device> devices = devices_of(args);
  options.device = devices.front();
  options.tensor_parallel.degree = ranks.ranks();
  options.tensor_parallel.timeout = ranks.timeout_ms();
  if (ranks.launched) {
    if (options.neuron_observer != nullptr) {
      throw UsageError(
          "neurons are observed in one process: start it without mpirun, torchrun or srun, with "
          "--tensor-parallel for several ranks");
    }
    options.tensor_parallel.meet = [session = ranks.session,
                                    model = ranks.model](const std::string& rank_options) {
      return session->start_engine(model, rank_options);
    };
  } else if (ranks.ranks() > 1) {
    options.tensor_parallel.devices = std::move(devices);
  }
  options.threads = args.threads;
  options.cpu_isa = parse_cpu_isa(args.cpu_isa);
  if (args.dtype != "auto" && options.device.is_cuda()) {
    options.dtype = args.dtype == "f16" ? DType::f16 : DType::bf16;
  }
  if (!args.kv_dtype.empty()) {
    options.kv_dtype = args.kv_dtype == "f16" ? DType::f16 : DType::f32;
  }
  options.weight_format = args.weight_format == "stored" ? "" : args.weight_format;
  options.records = args.records;
  options.activation_sparsity = args.activation_sparsity;
  options.verify = args.verify;
  options.tuning = args.tunes ? Tuning::measured : Tuning::off;
  options.tune_cache =
      args.tune_cache.empty() ? default_tune_cache() : std::filesystem::path(args.tune_cache);
  return options;
}

LoadProgress show_in(ProgressBar& bar) {
  return [&bar](int64_t done, int64_t total) {
    throw_if_interrupted();
    bar.update(done, total, fmt::format("of {:.1f} MiB", mib(total)));
  };
}

Engine load_engine(const ModelArgs& args, EngineOptions options, spdlog::logger& log) {
  return load_engine(open_model_directory(args.model), args, std::move(options), log);
}

Engine load_engine(const OpenDirectory& directory, const ModelArgs& args, EngineOptions options,
                   spdlog::logger& log) {
  check_model_args(args);
  catch_interrupts();
  options = engine_options(args, std::move(options));
  options.log = &log;
  ProgressBar bar("loading", !args.quiet);
  options.progress = show_in(bar);
  Engine engine = Engine::load(directory, options);
  log_engine(engine, args, log);
  return engine;
}

namespace {

// 1 for "" and "B"; nothing for a unit that there is none of. As dd has them: M and MiB are powers
// of 1024, MB of 1000.
std::optional<int64_t> unit_factor(std::string_view unit) {
  std::string letters;
  for (char c : unit) {
    letters += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  if (letters.empty() || letters == "B") {
    return 1;
  }
  const size_t power = std::string_view("KMGT").find(letters.front());
  const std::string rest = letters.substr(1);
  if (power == std::string_view::npos || (!rest.empty() && rest != "IB" && rest != "B")) {
    return std::nullopt;
  }
  int64_t factor = 1;
  for (size_t i = 0; i <= power; ++i) {
    factor *= rest == "B" ? 1000 : 1024;
  }
  return factor;
}

// Whole bytes of "1.5" units; nothing if the number does not fit, or is none.
std::optional<int64_t> scaled(std::string_view number, int64_t factor) {
  const char* const end = number.data() + number.size();
  int64_t whole = 0;
  auto [rest, error] = std::from_chars(number.data(), end, whole);
  if (error != std::errc() || whole > std::numeric_limits<int64_t>::max() / factor) {
    return std::nullopt;
  }
  whole *= factor;
  if (rest == end) {
    return whole;
  }
  double part = 0.0;
  const auto [last, part_error] = std::from_chars(rest, end, part, std::chars_format::fixed);
  const bool good = *rest == '.' && end - rest > 1 && part_error == std::errc() && last == end;
  const auto bytes = static_cast<int64_t>(part * static_cast<double>(factor));
  if (!good || factor == 1 || whole > std::numeric_limits<int64_t>::max() - bytes) {
    return std::nullopt;
  }
  return whole + bytes;
}

}  // namespace

int64_t parse_size(const std::string& flag, const std::string& text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::optional<int64_t> factor = unit_factor(std::string_view(text).substr(digits));
  const std::optional<int64_t> bytes =
      factor ? scaled(std::string_view(text).substr(0, digits), *factor) : std::nullopt;
  if (bytes.value_or(0) <= 0) {
    throw UsageError(
        fmt::format("{} {}; expected bytes, such as 512M, 1.5GiB (powers of 1024) or 512MB (of "
                    "1000)",
                    flag, quote(text)));
  }
  return *bytes;
}

}  // namespace sparsellm
