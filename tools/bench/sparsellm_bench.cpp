// Measures speed: sparsellm-bench throughput --config FILE | --model DIR,
//                 sparsellm-bench kernel --shape OUTxIN,... | --config FILE ...,
//                 sparsellm-bench kernel --matrix FILE.mtx ... | --class CLASS,... | --matrices
//                 FILE, sparsellm-bench mlp [--shape NEURONSxHIDDEN[:plain],...] ...,
//                 sparsellm-bench attention [--prefill] ...,
//                 sparsellm-bench comm --ranks N ...,
//                 sparsellm-bench layers --config FILE | --model DIR,
//                 sparsellm-bench load --model DIR,
//                 sparsellm-bench tune --config FILE | --model DIR | --shape OUTxIN,...

#include <spdlog/logger.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/attention.h"
#include "kernels/base/device.h"
#include "kernels/base/token_buckets.h"
#include "models/activation_sparsity.h"
#include "sparse/general_sparse/format/layout.h"
#include "sparse/registry.h"
#include "tools/bench/ablation.h"
#include "tools/bench/ablation_contender.h"
#include "tools/bench/args.h"
#include "tools/bench/arrivals.h"
#include "tools/bench/attention.h"
#include "tools/bench/choices.h"
#include "tools/bench/comm.h"
#include "tools/bench/cost_model.h"
#include "tools/bench/engine.h"
#include "tools/bench/environment.h"
#include "tools/bench/kernel.h"
#include "tools/bench/kernel_report.h"
#include "tools/bench/layers.h"
#include "tools/bench/linear_shapes.h"
#include "tools/bench/list_option.h"
#include "tools/bench/load.h"
#include "tools/bench/matrix_args.h"
#include "tools/bench/matrix_bench.h"
#include "tools/bench/matrix_list.h"
#include "tools/bench/matrix_report.h"
#include "tools/bench/mlp.h"
#include "tools/bench/random_sparsity.h"
#include "tools/bench/read_bandwidth.h"
#include "tools/bench/throughput.h"
#include "tools/bench/tune.h"
#include "tools/bench/turns.h"
#include "tools/cli/args.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/progress_bar.h"
#include "tools/cli/tool_main.h"
#include "tools/cli/with_ranks.h"

namespace sparsellm {
namespace {

constexpr char kTool[] = "sparsellm-bench";

// Of the report by layer after a run: more than the caches of the cores, and no more than is copied
// quickly.
constexpr int64_t kCpuRotationBytes = int64_t{32} << 20;

constexpr int64_t kAblationTokens[] = {1, 8, 16};

// What is read to measure the read bandwidth: many times any last cache.
constexpr int64_t kCpuReadBytes = int64_t{256} << 20;
constexpr int64_t kGpuReadBytes = int64_t{2} << 30;

const std::map<std::string, DType> kDTypes{{"f16", DType::f16}, {"bf16", DType::bf16}};

struct ThroughputArgs {
  BenchModelArgs model;
  OutputArgs output;
  std::vector<int64_t> batches = ThroughputOptions().batches;
  LengthRange prompt{64, 64};
  std::optional<int64_t> step_tokens;
  int64_t repeats = ThroughputOptions().repeats;
  bool breakdown = false;
  bool warm_up = true;
  bool no_sums = false;  // over ranks
  std::optional<double> arrival_rate;
  int64_t requests = ArrivalOptions().requests;
  std::optional<bool> layers;
  std::optional<double> predicted;  // with `zeros`, of predict
  std::optional<double> zeros;      // of exact, too
};

struct LayersArgs {
  BenchModelArgs model;
  OutputArgs output;
  LayerBenchOptions options;
  int64_t copies_mib = LayerBenchOptions().rotation_bytes >> 20;
  std::optional<int> ranks;
  bool all = false;
  bool choices = false;
};

struct KernelArgs {
  std::vector<std::string> shapes;
  std::vector<std::string> configs;
  std::vector<int64_t> degrees{1};
  MatrixArgs matrices;
  std::string device = "auto";
  std::string dtype;  // empty: that of weights, or of matrices
  std::vector<int64_t> tokens;
  std::vector<std::string> patterns{"uniform"};
  std::vector<std::string> formats;
  std::string layout;
  OutputArgs output;
  KernelBenchOptions options;
  int64_t copies_mib = KernelBenchOptions().rotation_bytes >> 20;
  std::string cpu_isa = "auto";
  bool ablation = false;
};

struct MlpArgs {
  std::vector<std::string> shapes;
  std::string device = "auto";
  std::string dtype = "f16";
  std::string votes{name_of(MlpBenchOptions().votes)};
  OutputArgs output;
  MlpBenchOptions options;
  int64_t copies_mib = MlpBenchOptions().rotation_bytes >> 20;
  std::string cpu_isa = "auto";
};

struct AttentionArgs {
  std::string device = "auto";
  std::string dtype = "f16";
  OutputArgs output;
  AttentionBenchOptions options;
};

struct CommArgs {
  int64_t ranks = 2;
  std::vector<std::string> bytes{"8K",   "16K",  "32K", "64K", "128K",
                                 "256K", "512K", "1M",  "2M",  "4M"};
  std::vector<std::string> ways;
  std::vector<std::string> devices{"auto"};
  std::string dtype = "f16";
  OutputArgs output;
  CommBenchOptions options;
};

struct TuneArgs {
  BenchModelArgs model;
  OutputArgs output;
  std::vector<std::string> shapes;
  std::vector<int64_t> tokens = KernelBenchOptions().tokens;
  int64_t max_requests = 64;
};

struct CostModelArgs {
  CostModelOptions options;
  OutputArgs output;
  std::string device = "cuda";
  std::vector<std::string> lists;
  std::string order;
  std::vector<std::string> dtypes;
  bool exhaustive = false;
};

struct LoadArgs {
  ModelArgs model;
  OutputArgs output;
  int64_t repeats = 3;
};

CLI::Validator count() { return CLI::Range(int64_t{1}, int64_t{1} << 24); }

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

CLI::App* add_throughput(CLI::App& app, ThroughputArgs& args) {
  CLI::App* const command = app.add_subcommand(
      "throughput", "Tokens per GPU-second of a model, batch by batch or as requests arrive");
  add_bench_model_args(*command, args.model);
  add_rank_args(*command, args.model.model.ranks);
  CLI::Option* const batch =
      add_list(*command, "--batch", args.batches,
               "Requests that run together; with --arrivals the largest is the most at a time")
          ->check(CLI::Range(int64_t{1}, int64_t{1} << 16))
          ->capture_default_str();
  batch->type_name("N,...");
  command
      ->add_option_function<std::string>(
          "--prompt",
          [&args](const std::string& text) { args.prompt = parse_length_range("--prompt", text); },
          "Random tokens of a prompt; with --arrivals also a range, such as 32:512 [64]")
      ->type_name("TOKENS");
  command
      ->add_option("--step-tokens", args.step_tokens,
                   fmt::format("Tokens computed in one step at most, no less than requests; the "
                               "prompts' come in chunks [{}]",
                               ThroughputOptions().step_tokens))
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  add_output_args(*command, args.output, OutputTokens::yes);
  CLI::Option* const repeat =
      command->add_option("--repeat", args.repeats, "Measured runs of a batch, after a warm-up")
          ->check(count())
          ->capture_default_str();
  command->add_flag("--no-sums", args.no_sums,
                    "Leave out the sums over ranks, for what they cost: what is generated means "
                    "nothing");
  CLI::Option* const breakdown =
      command->add_flag("--breakdown", args.breakdown,
                        "Also the time of a step by group; then no step is enqueued ahead");
  CLI::Option* const arrivals =
      command
          ->add_option_function<std::string>(
              "--arrivals",
              [&args](const std::string& text) {
                args.arrival_rate = parse_poisson("--arrivals", text);
              },
              "Requests arrive one by one, RATE a second on average, and latencies are measured")
          ->type_name("poisson:RATE")
          ->excludes(repeat)
          ->excludes(breakdown);
  command->add_option("--requests", args.requests, "Requests that arrive")
      ->check(count())
      ->capture_default_str()
      ->needs(arrivals);
  command->add_flag(
      "--warm-up,!--no-warm-up", args.warm_up,
      "Capture the CUDA graphs of all batch sizes while the model is loaded; without, "
      "each in the first step that needs it [yes]");
  CLI::Option* const predicted =
      command
          ->add_option(
              "--predicted", args.predicted,
              "With --activation-sparsity predict and random weights: share of the neurons "
              "that is predicted to be zero, by alphas that are chosen for it")
          ->check(CLI::Range(0.0, 1.0));
  CLI::Option* const zeros =
      command
          ->add_option("--zeros", args.zeros,
                       "With random weights: share that is zero, with what is predicted, by "
                       "thresholds of FATReLU; with --activation-sparsity exact it stands alone")
          ->check(CLI::Range(0.0, 1.0));
  predicted->needs(zeros);
  command->add_flag_function(
      "--layers,!--no-layers", [&args](int64_t times) { args.layers = times > 0; },
      "Then also the tables of `layers`, for the buckets of tokens that the batches are in [if "
      "weights "
      "are in a sparse format]");
  return command;
}

CLI::App* add_layers(CLI::App& app, LayersArgs& args) {
  CLI::App* const command =
      app.add_subcommand("layers", "Time of each linear layer of a model, in its format and dense");
  add_bench_model_args(*command, args.model);
  add_degree_arg(*command, "--tensor-parallel", args.ranks,
                 "The shares of these layers that rank 0 of so many has [1]");
  add_list(*command, "--tokens", args.options.tokens, "Rows of the activations")
      ->check(count())
      ->capture_default_str();
  command->add_flag("--all", args.all,
                    "Every block; else the one in the middle stands for all that are alike");
  command->add_flag("--choices", args.choices,
                    "Only which format --weight-format auto takes for each kind of layers, and the "
                    "times that decide");
  command->add_option("--repeat", args.options.repeat, "Timed products of each")
      ->check(count())
      ->capture_default_str();
  add_copies(*command, args.copies_mib);
  add_output_args(*command, args.output, OutputTokens::no);
  return command;
}

CLI::App* add_kernel(CLI::App& app, KernelArgs& args) {
  CLI::App* const command =
      app.add_subcommand("kernel", "Time of single linear layers by format, sparsity and tokens");
  CLI::Option* const shape =
      add_list(*command, "--shape", args.shapes, "Outputs x inputs of the layers to measure");
  shape->type_name("OUTxIN,...");
  CLI::Option* const config =
      command
          ->add_option("--config", args.configs,
                       "Files in the format of config.json: their linear layers that are usually "
                       "pruned, each shape once")
          ->type_name("FILE ...")
          ->check(not_empty())
          ->excludes(shape);
  add_list(*command, "--tensor-parallel", args.degrees,
           "The shapes that one of this many GPUs has of these layers")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 10))
      ->needs(config)
      ->capture_default_str();
  command->add_option("--device", args.device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  command
      ->add_option("--dtype", args.dtype,
                   "Of the weights: f16 or bf16 [f16]; of sparse matrices also f32 [f32]")
      ->check(CLI::IsMember({"f16", "bf16", "f32"}));
  add_output_args(*command, args.output, OutputTokens::no);
  KernelBenchOptions& options = args.options;
  add_list(*command, "--tokens", args.tokens,
           fmt::format("Rows of the activations [{}; with --ablation {}]; with sparse matrices "
                       "columns of B [{}]",
                       fmt::join(options.tokens, ","), fmt::join(kAblationTokens, ","),
                       fmt::join(MatrixBenchOptions().columns, ",")))
      ->check(count());
  CLI::Option* const sparsity =
      add_list(*command, "--sparsity", options.sparsities, "Shares of zeros in the random weights")
          ->check(CLI::Range(0.0, 1.0))
          ->capture_default_str();
  CLI::Option* const pattern = add_list(*command, "--pattern", args.patterns,
                                        "Where these zeros are: uniform, rows:S, columns:S, "
                                        "magnitude:S, outliers:F, dense-blocks:F, "
                                        "kept-blocks:RxC")
                                   ->capture_default_str();
  pattern->type_name("PATTERN,...");
  CLI::Option* const formats =
      add_list(*command, "--formats", args.formats,
               fmt::format("Formats of the weights [{}; with --ablation {}]",
                           fmt::join(options.formats, ","), ablation_formats().front()))
          ->check(not_empty());
  CLI::Option* const profile =
      command->add_flag("--profile", options.profile,
                        "Then launch each kernel once more between cudaProfilerStart and Stop");
  CLI::Option* const ablation = command
                                    ->add_flag("--ablation", args.ablation,
                                               "The kernel of a format for few tokens, whole and "
                                               "with a stage erased or replaced; with "
                                               "--search the stages of general_sparse's")
                                    ->excludes(profile);
  command
      ->add_option("--layout", args.layout,
                   "Of general_sparse, as text: what its weights, or sparse matrices, are encoded "
                   "in [by rule]")
      ->type_name("TEXT")
      ->check(is_layout())
      ->excludes(ablation);
  add_matrix_args(*command, args.matrices, {shape, config, sparsity, pattern, formats, profile});
  add_seed(*command, options.seed, "Seed of the random weights and matrices");
  command->add_option("--repeat", args.options.repeat, "Timed products of each")
      ->check(count())
      ->capture_default_str();
  add_threads(*command, args.options.threads);
  add_cpu_isa_arg(*command, args.cpu_isa);
  add_copies(*command, args.copies_mib);
  return command;
}

CLI::App* add_mlp(CLI::App& app, MlpArgs& args) {
  CLI::App* const command = app.add_subcommand(
      "mlp", "Time of an MLP whose neurons are predicted to be zero, of its parts, and dense");
  MlpBenchOptions& options = args.options;
  std::vector<std::string> shapes;
  for (const MlpShape& shape : options.shapes) {
    shapes.push_back(to_string(shape));
  }
  CLI::Option* const shape =
      add_list(*command, "--shape", args.shapes,
               fmt::format("Neurons x inputs of the MLPs, which have a gate, or with :plain none "
                           "[{}]",
                           fmt::join(shapes, ",")));
  shape->type_name("NxM[:plain],...");
  CLI::Option* const tokens =
      add_list(*command, "--tokens", options.tokens, "Rows of the activations")
          ->check(CLI::Range(int64_t{1}, int64_t{1} << 10))
          ->capture_default_str();
  command
      ->add_option("--predicted", options.shares.predicted,
                   "Share of the neurons of a token that is predicted to be zero, by the choice of "
                   "alpha")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command
      ->add_option("--zeros", options.shares.zeros,
                   "Share that is zero, with what is predicted, by the threshold of FATReLU")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  CLI::Option* const votes =
      command
          ->add_option(
              "--votes", args.votes,
              "What a vote of the prediction counts: sign, one each; weighted, the size of the "
              "input")
          ->check(CLI::IsMember({"sign", "weighted"}))
          ->capture_default_str();
  command
      ->add_flag("--ablation", options.ablation,
                 "The MLP as SparseInfer has it, without and with its ideas, beside ours: of MLPs "
                 "with a gate, for one token, with sign votes, on CUDA")
      ->excludes(tokens)
      ->excludes(votes);
  command->add_option("--device", args.device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  add_dtype(*command, args.dtype, "Of the weights: f16 or bf16");
  add_output_args(*command, args.output, OutputTokens::no);
  add_seed(*command, options.seed, "Seed of the random weights and tokens");
  command->add_option("--repeat", options.repeat, "Timed calls of each")
      ->check(count())
      ->capture_default_str();
  add_threads(*command, options.threads);
  add_cpu_isa_arg(*command, args.cpu_isa);
  add_copies(*command, args.copies_mib);
  return command;
}

CLI::App* add_attention(CLI::App& app, AttentionArgs& args) {
  CLI::App* const command =
      app.add_subcommand("attention", "Time of attention over paged keys and values by itself");
  AttentionBenchOptions& options = args.options;
  command->add_flag("--prefill", options.prefill,
                    "Rows for all tokens of the context; else the step that decodes the last one");
  add_list(*command, "--requests", options.requests, "Requests of a call")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 16))
      ->capture_default_str();
  add_list(*command, "--context", options.contexts, "Tokens of each request")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  const CLI::Range heads(int64_t{1}, int64_t{1} << 10);
  command->add_option("--heads", options.heads, "Query heads")->check(heads)->capture_default_str();
  command->add_option("--kv-heads", options.kv_heads, "Key/value heads, which query heads share")
      ->check(heads)
      ->capture_default_str();
  command->add_option("--head-dim", options.head_dim, "Elements of a head")
      ->check(CLI::Range(int64_t{8}, kMaxHeadDim))
      ->capture_default_str();
  command->add_option("--device", args.device, "auto, cuda or cuda:N")->capture_default_str();
  add_dtype(*command, args.dtype, "Of queries, keys and values: f16 or bf16");
  add_output_args(*command, args.output, OutputTokens::no);
  add_seed(*command, options.seed, "Seed of the random operands");
  command->add_option("--repeat", options.repeat, "Timed replays of each")
      ->check(count())
      ->capture_default_str();
  return command;
}

CLI::App* add_comm(CLI::App& app, CommArgs& args) {
  CLI::App* const command =
      app.add_subcommand("comm", "Time of sums over several GPUs, by the way that they are made");
  command->add_option("--ranks", args.ranks, "GPUs, each with a thread of its own")
      ->check(CLI::Range(int64_t{2}, int64_t{CommLayout::kMaxRanks}))
      ->capture_default_str();
  add_list(*command, "--bytes", args.bytes, "Sizes of the tensor that is summed up")
      ->capture_default_str()
      ->type_name("SIZE,...");
  std::vector<std::string> ways;
  for (const CommBenchWay& way : all_comm_ways()) {
    ways.push_back(name_of(way));
  }
  add_list(*command, "--ways", args.ways, "Ways to make the sum [all]")
      ->check(CLI::IsMember(ways))
      ->type_name("NAME,...");
  add_list(*command, "--device", args.devices,
           "auto: the first GPUs; or one for each rank: cuda:2,cuda:3")
      ->capture_default_str();
  command->add_option("--dtype", args.dtype, "Of the tensor: f16, bf16 or f32")
      ->check(CLI::IsMember({"f16", "bf16", "f32"}))
      ->capture_default_str();
  add_output_args(*command, args.output, OutputTokens::no);
  add_seed(*command, args.options.seed, "Seed of the random values that are verified");
  command->add_option("--calls", args.options.calls, "Calls in the graph that is replayed")
      ->check(CLI::Range(int64_t{1}, int64_t{10000}))
      ->capture_default_str();
  command->add_option("--repeat", args.options.repeat, "Timed replays of each")
      ->check(count())
      ->capture_default_str();
  return command;
}

CLI::App* add_tune(CLI::App& app, TuneArgs& args) {
  CLI::App* const command =
      app.add_subcommand("tune", "Measures which kernels are fastest, for later loads to use");
  add_bench_model_args(*command, args.model);
  CLI::Option* const shape = add_list(*command, "--shape", args.shapes,
                                      "Outputs x inputs of single layers, without model");
  shape->type_name("OUTxIN,...")
      ->excludes("--model")
      ->excludes("--config")
      ->excludes("--plan")
      ->excludes("--pattern");
  add_list(*command, "--tokens", args.tokens, "Rows of the activations of single layers")
      ->check(count())
      ->needs(shape)
      ->capture_default_str();
  command->add_option("--parallel", args.max_requests, "Requests that a model serves at a time")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 16))
      ->capture_default_str();
  add_output_args(*command, args.output, OutputTokens::no);
  return command;
}

CLI::App* add_cost_model(CLI::App& app, CostModelArgs& args) {
  CostModelOptions& options = args.options;
  CLI::App* const command = app.add_subcommand(
      "cost-model",
      "How well general_sparse predicts the times of generated kernels, or a new fit");
  add_list(*command, "--matrices", args.lists,
           "Lists of random matrices, such as configs/cost_models/matrices.json")
      ->required()
      ->check(not_empty())
      ->type_name("FILE.json,...");
  command->add_option("--device", args.device, "cuda or cuda:N")->capture_default_str();
  add_list(*command, "--dtype", args.dtypes, "Of the matrices: f32, f16, bf16 [f32]")
      ->check(CLI::IsMember({"f16", "bf16", "f32"}));
  add_list(*command, "--tokens", options.columns, "Columns of B")
      ->check(count())
      ->capture_default_str();
  command->add_option("--order", args.order, "How B and C lie: rows, columns or both [rows]")
      ->check(CLI::IsMember({"rows", "columns", "both"}));
  CLI::Option* const best =
      command
          ->add_option("--plans", options.best_plans,
                       "Plans of each product that are measured, the model's best first")
          ->check(CLI::Range(int64_t{0}, int64_t{1} << 20))
          ->capture_default_str();
  CLI::Option* const random =
      command->add_option("--random-plans", options.random_plans, "Others, drawn at random")
          ->check(CLI::Range(int64_t{0}, int64_t{1} << 20))
          ->capture_default_str();
  command->add_flag("--exhaustive", args.exhaustive, "All plans of the search")
      ->excludes(best)
      ->excludes(random);
  CLI::Option* const model = command
                                 ->add_option("--cost-model", options.model,
                                              "The model, in place of the one that is built in")
                                 ->type_name("FILE.json")
                                 ->check(not_empty());
  CLI::Option* const write =
      command->add_option("--write", options.write, "A model that is fitted to all of these times")
          ->type_name("FILE.json")
          ->check(not_empty());
  add_list(*command, "--samples", options.samples,
           "Times from earlier reports in jsonl, in place of measurements")
      ->type_name("FILE.jsonl,...")
      ->check(not_empty())
      ->needs(write)
      ->excludes(model);
  add_seed(*command, options.seed, "Seed of the plans that are drawn");
  add_output_args(*command, args.output, OutputTokens::no);
  return command;
}

CLI::App* add_load(CLI::App& app, LoadArgs& args) {
  CLI::App* const command =
      app.add_subcommand("load", "How fast the weights of a checkpoint come to the GPU");
  add_model_args(*command, args.model);
  command->add_option("--repeat", args.repeats, "Measured loads")
      ->check(count())
      ->capture_default_str();
  add_output_args(*command, args.output, OutputTokens::no);
  return command;
}

using Shapes = std::vector<std::pair<int64_t, int64_t>>;

void add_shape(std::pair<int64_t, int64_t> shape, Shapes& shapes) {
  if (std::find(shapes.begin(), shapes.end(), shape) == shapes.end()) {
    shapes.push_back(shape);
  }
}

Shapes parse_shapes(const std::vector<std::string>& texts) {
  Shapes shapes;
  for (const std::string& text : texts) {
    add_shape(parse_shape("--shape", text), shapes);
  }
  return shapes;
}

// Each of which is possible with each of the sparsities.
std::vector<ZeroPattern> parse_patterns(const std::vector<std::string>& texts,
                                        const std::vector<double>& sparsities) {
  std::vector<ZeroPattern> patterns;
  for (const std::string& text : texts) {
    patterns.push_back(parse_pattern("--pattern", text));
    for (const double sparsity : sparsities) {
      check_pattern("--pattern", patterns.back(), sparsity);
    }
  }
  return patterns;
}

// Of --shape, or of the layers in --config that are usually pruned; each shape once.
Shapes layer_shapes(const KernelArgs& args) {
  Shapes shapes = parse_shapes(args.shapes);
  for (const std::string& config : args.configs) {
    for (const int64_t degree : args.degrees) {
      for (const LinearShape& layer : linear_shard_shapes(config, {.rank = 0, .degree = degree})) {
        if (layer.pruned) {
          add_shape({layer.out, layer.in}, shapes);
        }
      }
    }
  }
  return shapes;
}

void write_stdout(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);  // a reader of lines sees each row when it is there
}

// Runs `body` with a report on stdout. What was measured before an error is written all the same.
template <class Body>
void with_report(const OutputArgs& output, Environment environment, Body&& body) {
  ReportWriter report(output.format.value_or(ReportFormat::table), std::move(environment),
                      write_stdout);
  try {
    body(report);
  } catch (...) {
    report.finish();
    throw;
  }
  report.finish();
}

// Tokens that every request has.
int64_t fixed_length(const char* flag, const LengthRange& range) {
  if (!range.is_fixed()) {
    throw UsageError(
        fmt::format("{} {}:{} is a range, which needs --arrivals", flag, range.min, range.max));
  }
  return range.min;
}

class BenchProgress {
 public:
  BenchProgress(std::string label, std::string unit, bool enabled)
      : bar_(std::move(label), enabled), unit_(std::move(unit)) {}

  void operator()(int64_t done, int64_t total) {
    throw_if_interrupted();
    bar_.update(done, total, fmt::format("of {} {}", total, unit_));
  }

 private:
  ProgressBar bar_;
  std::string unit_;
};

Environment describe_model_environment(const BenchModelArgs& args,
                                       const std::vector<std::string>& command_line) {
  Environment environment =
      describe_environment(device_of(args.model), command_line, parse_cpu_isa(args.model.cpu_isa));
  if (args.model.ranks.ranks() > 1) {
    environment.push_back({.key = "devices", .value = devices_text(args.model)});
  }
  if (!args.plan.empty()) {
    environment.push_back({.key = "plan", .value = args.plan});
  }
  return environment;
}

// The time of the linear layers of a model that is not loaded, as in an engine of this size.
void measure_layers(const BenchModelArgs& model, LayerBenchOptions options,
                    const BenchEngineSize& size, int ranks, spdlog::logger& log,
                    ReportWriter& report) {
  options.seed = model.seed;
  options.sums = model.deterministic ? Sums::batch_invariant : Sums::fastest;
  BenchProgress progress("layers", "layers", !model.model.quiet);
  options.progress = std::ref(progress);
  report_layers(options, open_layers(model, size, ranks, &log), report);
}

bool shows_layers(const ThroughputArgs& args) {
  return args.layers ? *args.layers : may_be_sparse(args.model);
}

// After a run of an engine of this size, if it is wanted; for the buckets of tokens that it decodes
// in.
void measure_layers_of_run(const ThroughputArgs& args, const BenchEngineSize& size,
                           spdlog::logger& log, ReportWriter& report) {
  if (shows_layers(args)) {
    std::set<int64_t> buckets;
    for (const int64_t batch : size.decode_tokens) {
      buckets.insert(token_bucket(batch));
    }
    LayerBenchOptions options;
    options.tokens.assign(buckets.begin(), buckets.end());
    if (!device_of(args.model.model).is_cuda()) {
      options.rotation_bytes = kCpuRotationBytes;
    }
    measure_layers(args.model, std::move(options), size, args.model.model.ranks.ranks(), log,
                   report);
  }
}

void report_choices_of_run(const std::vector<FormatChoice>& choices, ReportWriter& report) {
  if (!choices.empty()) {
    report_choices(choices, report);
  }
}

Property read_bandwidth_property(double bytes_per_second) {
  return {.key = "read_bandwidth_gb_per_s", .value = std::round(bytes_per_second * 1e-8) / 10.0};
}

// How a verdict is arrived at.
Property verdict_property() { return {.key = "verdict", .value = std::string(verdict_rule())}; }

void measure_batches(const ThroughputArgs& args, const LengthRange& output, Environment environment,
                     spdlog::logger& log) {
  ThroughputOptions options;
  options.batches = args.batches;
  options.prompt = fixed_length("--prompt", args.prompt);
  options.output = fixed_length("--output", output);
  options.step_tokens = args.step_tokens.value_or(options.step_tokens);
  options.repeats = args.repeats;
  options.seed = args.model.seed;
  options.pattern = pattern_name(args.model);
  const Device device = device_of(args.model.model);
  options.device = device;
  options.ranks = args.model.model.ranks.ranks();
  if (args.breakdown) {
    require(device.is_cuda(), "--breakdown: the parts of a step are measured on CUDA alone");
    options.breakdown = [](const Engine& engine) { return engine.decode_seconds(); };
  }
  // Before the model takes the memory.
  options.read_bandwidth =
      measure_read_bandwidth(device, device.is_cuda() ? kGpuReadBytes : kCpuReadBytes);
  environment.push_back(read_bandwidth_property(options.read_bandwidth));
  std::vector<FormatChoice> choices;
  BenchEngineSize size{.max_requests = 0,
                       .prompt = options.prompt,
                       .step_tokens = options.step_tokens,
                       .context_size = options.prompt + options.output,
                       .traces = args.breakdown,
                       .warm_up = args.warm_up,
                       .leaves_out_sums = args.no_sums,
                       .decode_tokens = args.batches};
  const LoadEngine load = [&](int64_t max_requests) {
    size.max_requests = max_requests;
    Engine engine = load_bench_engine(args.model, size, log);
    choices = engine.format_choices();
    return engine;
  };
  with_report(args.output, std::move(environment), [&](ReportWriter& report) {
    BenchProgress progress("measuring", "steps", !args.model.model.quiet);
    options.progress = std::ref(progress);
    bench_throughput(options, load, report);
    report_choices_of_run(choices, report);
    measure_layers_of_run(args, size, log, report);
  });
}

void serve_arrivals(const ThroughputArgs& args, ArrivalOptions options, const BenchEngineSize& size,
                    spdlog::logger& log, ReportWriter& report) {
  Engine engine = load_bench_engine(args.model, size, log);
  BenchProgress progress("serving", "requests", !args.model.model.quiet);
  options.progress = std::ref(progress);
  bench_arrivals(engine, options, report);
  report_choices_of_run(engine.format_choices(), report);
}

void measure_arrivals(const ThroughputArgs& args, const LengthRange& output,
                      Environment environment, spdlog::logger& log) {
  ArrivalOptions options;
  options.rate = *args.arrival_rate;
  options.requests = args.requests;
  options.prompt = args.prompt;
  options.output = output;
  options.seed = args.model.seed;
  options.pattern = pattern_name(args.model);
  options.device = device_of(args.model.model);
  options.ranks = args.model.model.ranks.ranks();
  const int64_t most = *std::max_element(args.batches.begin(), args.batches.end());
  const BenchEngineSize size{
      .max_requests = most,
      .prompt = options.prompt.max,
      .step_tokens = args.step_tokens.value_or(BenchEngineSize().step_tokens),
      .context_size = options.prompt.max + options.output.max,
      .warm_up = args.warm_up,
      .decode_tokens = {most}};
  with_report(args.output, std::move(environment), [&](ReportWriter& report) {
    serve_arrivals(args, options, size, log, report);
    measure_layers_of_run(args, size, log, report);
  });
}

void check_shares_of_run(const ThroughputArgs& args) {
  const ActivationSparsityRequest& request = args.model.model.activation_sparsity;
  if (args.model.config.empty()) {
    throw UsageError("--predicted and --zeros are for the random weights of --config");
  }
  const bool predicts = args.predicted.has_value();
  if (request.mode !=
          (predicts ? ActivationSparsity::Mode::predict : ActivationSparsity::Mode::exact) ||
      request.alpha) {
    throw UsageError(
        "--predicted and --zeros are for --activation-sparsity predict without --alpha, --zeros "
        "alone is for exact");
  }
  if (predicts && *args.predicted > *args.zeros) {
    throw UsageError(
        fmt::format("--predicted {} is more than --zeros {}; what is predicted counts "
                    "as zero",
                    *args.predicted, *args.zeros));
  }
}

// With alphas and thresholds for the shares of neurons that are wanted.
ThroughputArgs with_chosen_sparsity(ThroughputArgs args, spdlog::logger& log) {
  ModelArgs& model = args.model.model;
  ThreadPool threads(model.threads);
  const double predicted = args.predicted.value_or(0.0);
  log.info("choosing alphas and thresholds for {} of the neurons predicted and {} zero", predicted,
           *args.zeros);
  const ActivationSparsity chosen = choose_random_sparsity(
      read_bench_config(args.model), random_weights(args.model, engine_options(model, {})),
      {.predicted = predicted, .zeros = *args.zeros},
      model.activation_sparsity.votes.value_or(ActivationSparsity().votes), threads);
  if (args.predicted) {
    model.activation_sparsity.alphas = chosen.alphas;
  }
  model.activation_sparsity.thresholds = chosen.thresholds;
  return args;
}

void throughput(const ThroughputArgs& given, const std::vector<std::string>& command_line) {
  ThroughputArgs args = given;
  const int64_t most = *std::max_element(args.batches.begin(), args.batches.end());
  if (args.step_tokens && *args.step_tokens < most) {
    throw UsageError(
        fmt::format("--step-tokens {} is less than --batch {}", *args.step_tokens, most));
  }
  if (args.zeros) {
    check_shares_of_run(args);
  }
  check_bench_model(args.model);  // what can be refused is refused before anything is measured
  const LengthRange output = args.output.tokens.value_or(
      LengthRange{.min = ThroughputOptions().output, .max = ThroughputOptions().output});
  const auto log = make_log(kTool, args.model.model);
  warn_about_device(args.model.model.device, *log);
  catch_interrupts();
  if (args.zeros) {
    args = with_chosen_sparsity(std::move(args), *log);
  }
  Environment environment = describe_model_environment(args.model, command_line);
  if (shows_layers(args)) {
    environment.push_back(verdict_property());
  }
  if (args.arrival_rate) {
    measure_arrivals(args, output, std::move(environment), *log);
  } else {
    measure_batches(args, output, std::move(environment), *log);
  }
}

// Products of sparse matrices.
void kernel_of_matrices(const KernelArgs& args, const std::vector<std::string>& command_line) {
  if (args.ablation && args.matrices.searched_plans == 0) {
    throw UsageError("--ablation of products of sparse matrices needs --search");
  }
  const KernelBenchOptions& common = args.options;
  MatrixBenchOptions options;
  options.matrices = matrix_sources(args.matrices, common.seed);
  options.orders = matrix_orders(args.matrices);
  options.search = {.plans = args.matrices.searched_plans, .stages = args.ablation};
  options.layout = args.layout;
  if (!args.tokens.empty()) {
    options.columns = args.tokens;
  }
  if (!args.dtype.empty() && args.dtype != name_of(DType::f32)) {
    options.dtype = kDTypes.at(args.dtype);
  }
  options.repeat = common.repeat;
  options.rotation_bytes = args.copies_mib << 20;
  options.threads = common.threads;
  options.seed = common.seed;
  check_options(options);  // what can be refused is refused before anything is measured
  warn_about_device(args.device, *make_log(kTool, {}));
  options.device = parse_device(args.device);
  options.cpu_isa = parse_cpu_isa(args.cpu_isa);
  catch_interrupts();
  Environment environment = describe_environment(options.device, command_line, options.cpu_isa);
  environment.push_back({.key = "dtype", .value = std::string(name_of(options.dtype))});
  environment.push_back({.key = "verdict", .value = std::string(matrix_verdict_rule())});
  with_report(args.output, std::move(environment),
              [&](ReportWriter& report) { report_matrices(options, report); });
}

void cost_model(const CostModelArgs& args, const std::vector<std::string>& command_line) {
  CostModelOptions options = args.options;
  for (const std::string& list : args.lists) {
    std::vector<MatrixSource> listed = read_matrix_list(list);
    options.matrices.insert(options.matrices.end(), std::make_move_iterator(listed.begin()),
                            std::make_move_iterator(listed.end()));
  }
  options.orders = matrix_orders({.order = args.order});
  if (!args.dtypes.empty()) {
    options.dtypes.clear();
    for (const std::string& dtype : args.dtypes) {
      options.dtypes.push_back(dtype == name_of(DType::f32) ? DType::f32 : kDTypes.at(dtype));
    }
  }
  if (args.exhaustive) {
    options.best_plans = std::numeric_limits<int64_t>::max();
  }
  options.device = options.samples.empty() ? parse_device(args.device) : Device();
  catch_interrupts();
  with_report(args.output, describe_environment(options.device, command_line),
              [&](ReportWriter& report) { report_cost_model(options, report); });
}

void kernel(const KernelArgs& args, const std::vector<std::string>& command_line) {
  check_matrix_args(args.matrices);
  if (args.matrices.given()) {
    kernel_of_matrices(args, command_line);
    return;
  }
  KernelBenchOptions options = args.options;
  options.shapes = layer_shapes(args);
  if (options.shapes.empty()) {
    throw UsageError(
        "there is nothing to benchmark; give --shape OUTxIN or --config FILE, or sparse matrices: "
        "--matrix, --class or --matrices");
  }
  if (args.dtype == name_of(DType::f32)) {
    throw UsageError("--dtype f32 is for --matrix, --class and --matrices");
  }
  if (!args.tokens.empty()) {
    options.tokens = args.tokens;
  } else if (args.ablation) {
    options.tokens.assign(std::begin(kAblationTokens), std::end(kAblationTokens));
  }
  if (!args.formats.empty()) {
    options.formats = args.formats;
  } else if (args.ablation) {
    options.formats = {std::string(ablation_formats().front())};
  }
  if (args.ablation) {
    check_ablation_formats(options.formats);
  }
  if (!args.layout.empty() &&
      std::ranges::find(options.formats, general_sparse::kName) == options.formats.end()) {
    throw UsageError("--layout is for --formats general_sparse, --matrix, --class and --matrices");
  }
  options.layout = args.layout;
  options.patterns = parse_patterns(args.patterns, options.sparsities);
  options.dtype = args.dtype.empty() ? options.dtype : kDTypes.at(args.dtype);
  warn_about_device(args.device, *make_log(kTool, {}));
  options.device = parse_device(args.device);
  options.cpu_isa = parse_cpu_isa(args.cpu_isa);
  options.rotation_bytes = args.copies_mib << 20;
  catch_interrupts();
  Environment environment = describe_environment(options.device, command_line, options.cpu_isa);
  environment.push_back({.key = "dtype", .value = std::string(name_of(options.dtype))});
  if (!args.ablation) {
    environment.push_back(verdict_property());
  }
  with_report(args.output, std::move(environment), [&](ReportWriter& report) {
    args.ablation ? report_ablation(options, report) : report_kernels(options, report);
  });
}

void mlp(const MlpArgs& args, const std::vector<std::string>& command_line) {
  MlpBenchOptions options = args.options;
  if (!args.shapes.empty()) {
    options.shapes.clear();
    for (const std::string& text : args.shapes) {
      options.shapes.push_back(parse_mlp_shape("--shape", text));
    }
  }
  options.dtype = kDTypes.at(args.dtype);
  options.votes = args.votes == name_of(Votes::sign) ? Votes::sign : Votes::weighted;
  if (options.ablation) {
    options.tokens = {1};
    options.votes = Votes::sign;
    if (args.shapes.empty()) {
      std::erase_if(options.shapes, [](const MlpShape& shape) { return !shape.gated; });
    }
  }
  if (options.shares.predicted > options.shares.zeros) {
    throw UsageError(
        fmt::format("--predicted {} is more than --zeros {}; what is predicted counts as zero",
                    options.shares.predicted, options.shares.zeros));
  }
  check_options(options);  // what can be refused is refused before anything is measured
  warn_about_device(args.device, *make_log(kTool, {}));
  options.device = parse_device(args.device);
  if (options.ablation) {
    check_ablation(options);
  }
  options.cpu_isa = parse_cpu_isa(args.cpu_isa);
  options.rotation_bytes = args.copies_mib << 20;
  catch_interrupts();
  Environment environment = describe_environment(options.device, command_line, options.cpu_isa);
  environment.push_back({.key = "dtype", .value = std::string(name_of(options.dtype))});
  environment.push_back(verdict_property());
  with_report(args.output, std::move(environment),
              [&](ReportWriter& report) { report_mlps(options, report); });
}

void attention_alone(const AttentionArgs& args, const std::vector<std::string>& command_line) {
  AttentionBenchOptions options = args.options;
  options.dtype = kDTypes.at(args.dtype);
  check_options(options);  // what can be refused is refused before anything is measured
  warn_about_device(args.device, *make_log(kTool, {}));
  options.device = parse_device(args.device);
  check_attention_device(options.device);
  catch_interrupts();
  Environment environment = describe_environment(options.device, command_line);
  options.read_bandwidth = measure_read_bandwidth(options.device, kGpuReadBytes);
  environment.push_back(read_bandwidth_property(options.read_bandwidth));
  with_report(args.output, std::move(environment),
              [&](ReportWriter& report) { report_attention(options, report); });
}

std::vector<Device> devices_of_ranks(const CommArgs& args) {
  std::vector<Device> devices;
  if (args.devices == std::vector<std::string>{"auto"}) {
    for (int rank = 0; rank < args.ranks; ++rank) {
      devices.push_back({Device::Kind::cuda, rank});
    }
    return devices;
  }
  if (std::ssize(args.devices) != args.ranks) {
    throw UsageError(
        fmt::format("--device has {} names for {} ranks", args.devices.size(), args.ranks));
  }
  for (const std::string& name : args.devices) {
    devices.push_back(parse_device(name));
  }
  return devices;
}

void comm(const CommArgs& args, const std::vector<std::string>& command_line) {
  CommBenchOptions options = args.options;
  options.dtype = args.dtype == "f32" ? DType::f32 : kDTypes.at(args.dtype);
  for (const std::string& size : args.bytes) {
    options.bytes.push_back(parse_size("--bytes", size));
  }
  if (!args.ways.empty()) {
    options.ways.clear();
    for (const CommBenchWay& way : all_comm_ways()) {
      if (std::find(args.ways.begin(), args.ways.end(), name_of(way)) != args.ways.end()) {
        options.ways.push_back(way);
      }
    }
  }
  check_options(options);  // what can be refused is refused before anything is measured
  options.devices = devices_of_ranks(args);
  check_comm_devices(options);
  catch_interrupts();
  with_report(args.output, describe_environment(options.devices.front(), command_line),
              [&](ReportWriter& report) { report_comm(options, report); });
}

void layers(const LayersArgs& args, const std::vector<std::string>& command_line) {
  check_bench_model_args(args.model);
  check_bench_model(args.model);  // what can be refused is refused before anything is measured
  if (args.choices && args.model.model.weight_format != kAutoFormat) {
    throw UsageError("--choices is for --weight-format auto");
  }
  const auto log = make_log(kTool, args.model.model);
  warn_about_device(args.model.model.device, *log);
  catch_interrupts();
  LayerBenchOptions options = args.options;
  options.rotation_bytes = args.copies_mib << 20;
  options.blocks = args.all ? LayerBenchOptions::Blocks::all : LayerBenchOptions::Blocks::alike;
  // An engine whose decode steps have these numbers of tokens, one of each request.
  const BenchEngineSize size{
      .max_requests = *std::max_element(options.tokens.begin(), options.tokens.end()),
      .decode_tokens = options.tokens};
  Environment environment = describe_model_environment(args.model, command_line);
  environment.push_back(verdict_property());
  const int ranks = args.ranks.value_or(1);
  with_report(args.output, std::move(environment), [&](ReportWriter& report) {
    if (args.choices) {
      report_choices(open_layers(args.model, size, ranks, log.get()).choices, report);
    } else {
      measure_layers(args.model, options, size, ranks, *log, report);
    }
  });
}

void load(const LoadArgs& args, const std::vector<std::string>& command_line) {
  const auto log = make_log(kTool, args.model);
  warn_about_device(args.model.device, *log);
  with_report(args.output, describe_environment(parse_device(args.model.device), command_line),
              [&](ReportWriter& report) { bench_load(args.model, args.repeats, *log, report); });
}

// What a load of the model measures, and keeps.
void tune_model(const TuneArgs& args, spdlog::logger& log, ReportWriter& report) {
  const int64_t context = std::min<int64_t>(read_bench_config(args.model).max_positions, 256);
  const Engine engine = load_bench_engine(
      args.model, {.max_requests = args.max_requests, .context_size = context}, log);
  report.begin_table("tune", tune_columns());
  report.add_row({args.model.config.empty() ? args.model.model.model : args.model.config,
                  engine.stats().tuned_choices,
                  engine.stats().load_seconds - engine.stats().weight_seconds});
}

void tune(const TuneArgs& args, const std::vector<std::string>& command_line) {
  const Device device = parse_device(args.model.model.device);
  const auto log = make_log(kTool, args.model.model);
  warn_about_device(args.model.model.device, *log);
  catch_interrupts();
  if (args.shapes.empty()) {
    check_bench_model_args(args.model);
  }
  require(device.is_cuda(), "there is nothing to tune on {}", to_string(device));
  require(args.model.model.tunes && !engine_options(args.model.model, {}).tune_cache.empty(),
          "there is no file to keep the choices in; give --tune-cache FILE");
  Environment environment = describe_model_environment(args.model, command_line);
  with_report(args.output, std::move(environment), [&](ReportWriter& report) {
    if (args.shapes.empty()) {
      tune_model(args, *log, report);
      return;
    }
    const EngineOptions engine = engine_options(args.model.model, {});
    tune_shapes({.shapes = parse_shapes(args.shapes),
                 .tokens = args.tokens,
                 .dtype = engine.dtype.value_or(DType::f16),
                 .device = device,
                 .cache = engine.tune_cache,
                 .seed = args.model.seed},
                report);
  });
}

}  // namespace
}  // namespace sparsellm

int main(int argc, char** argv) {
  CLI::App app("Measures the speed of language models and of their parts.", sparsellm::kTool);
  app.require_subcommand(0, 1);  // a wrong one is named before it is said that one is missing
  sparsellm::ThroughputArgs throughput_args;
  sparsellm::KernelArgs kernel_args;
  sparsellm::MlpArgs mlp_args;
  sparsellm::AttentionArgs attention_args;
  sparsellm::CommArgs comm_args;
  sparsellm::LayersArgs layers_args;
  sparsellm::LoadArgs load_args;
  sparsellm::TuneArgs tune_args;
  sparsellm::CostModelArgs cost_model_args;
  const CLI::App* throughput = sparsellm::add_throughput(app, throughput_args);
  const CLI::App* kernel = sparsellm::add_kernel(app, kernel_args);
  const CLI::App* mlp = sparsellm::add_mlp(app, mlp_args);
  const CLI::App* attention = sparsellm::add_attention(app, attention_args);
  const CLI::App* comm = sparsellm::add_comm(app, comm_args);
  const CLI::App* layers = sparsellm::add_layers(app, layers_args);
  const CLI::App* load = sparsellm::add_load(app, load_args);
  const CLI::App* tune = sparsellm::add_tune(app, tune_args);
  const CLI::App* cost_model = sparsellm::add_cost_model(app, cost_model_args);
  const std::vector<std::string> command_line(argv, argv + argc);
  return sparsellm::tool_main(app, argc, argv, [&] {
    if (throughput->parsed()) {
      sparsellm::BenchModelArgs& model = throughput_args.model;
      check_bench_model_args(model);
      sparsellm::with_ranks(
          sparsellm::kTool, model.model, [&] { return std::vector{bench_rank_model(model)}; },
          [&] { sparsellm::throughput(throughput_args, command_line); });
    } else if (kernel->parsed()) {
      sparsellm::kernel(kernel_args, command_line);
    } else if (mlp->parsed()) {
      sparsellm::mlp(mlp_args, command_line);
    } else if (attention->parsed()) {
      sparsellm::attention_alone(attention_args, command_line);
    } else if (comm->parsed()) {
      sparsellm::comm(comm_args, command_line);
    } else if (layers->parsed()) {
      sparsellm::layers(layers_args, command_line);
    } else if (load->parsed()) {
      sparsellm::load(load_args, command_line);
    } else if (tune->parsed()) {
      sparsellm::tune(tune_args, command_line);
    } else if (cost_model->parsed()) {
      sparsellm::cost_model(cost_model_args, command_line);
    } else {
      throw sparsellm::UsageError(
          "a subcommand is missing: throughput, kernel, mlp, attention, comm, layers, load, tune "
          "or cost-model");
    }
  });
}
