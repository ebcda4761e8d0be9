#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/zero_pattern.h"
#include "models/activation_sparsity.h"

// A figure or table of a paper as a list of what to measure, with what the paper states beside it.
namespace sparsellm {

// What `prompt` and `outputs` of a suite are where it is silent.
inline constexpr int64_t kSuitePrompt = 64;
inline constexpr int64_t kSuiteOutput = 512;

// Zeros of random weights. A cell of the format "dense" has none.
struct SuiteZeros {
  std::string plan = {};  // "flash-llm"; empty: the same share everywhere
  std::filesystem::path plan_file = {};
  double sparsity = 0.0;                    // without a plan; in [0, 1]
  std::optional<ZeroPattern> pattern = {};  // absent: uniform, or as the plan's scopes say

  bool operator==(const SuiteZeros&) const = default;
};

// Neurons of random weights that are predicted to be zero, and that are.
struct SuiteActivation {
  ActivationSparsity::Mode mode = ActivationSparsity::Mode::off;
  Votes votes = Votes::weighted;         // of predict
  std::optional<double> predicted = {};  // of predict, where it is always there
  std::optional<double> zeros = {};      // of predict, where it is always there, and of exact

  bool operator==(const SuiteActivation&) const = default;
};

// Requests that start together, as bench_throughput() measures them.
struct EngineCell {
  std::string model;             // "opt-30b"
  std::filesystem::path config;  // its file
  SuiteActivation activation;
  int gpus = 1;                   // that share the model
  std::string gpu_memory = {};    // "24G"; empty: what the GPU has
  int64_t gpu_memory_bytes = 0;   // 0: what the GPU has
  bool breakdown = false;         // also the time of a step by group
  int64_t batch = 0;              // requests
  int64_t prompt = kSuitePrompt;  // tokens of each
  int64_t output = kSuiteOutput;

  bool operator==(const EngineCell&) const = default;
};

// A product with the weight of one linear layer, as bench_kernels() measures it.
struct KernelCell {
  int64_t out = 0;
  int64_t in = 0;
  int64_t tokens = 0;

  bool operator==(const KernelCell&) const = default;
};

struct SuiteCell {
  // What tells it from all other cells of its suite, and the key of its result; it does not depend
  // on other cells. What has its default is left out of it:
  //   opt-30b/tiled_csl/plan:flash-llm/1gpu/b8/o512
  //   opt-30b/dense/2gpu/24G/b8/p128/o64
  //   opt-30b/tca_bme/s0.8/rows:0.5/size/bf16/1gpu/breakdown/b8/o512
  //   llama-2-7b/dense/predict:0.8:0.89:sign/1gpu/b1/o512   (predicted, zeros, votes)
  //   36864x9216/tiled_csl/s0.8/n8
  std::string name;
  // The beginning of the name that cells have in common that can be measured with one model, or one
  // weight, in memory. They lie one after the other in a suite.
  std::string load;
  std::string format;  // a name of sparse/registry.h, "auto" or "smallest"; of kernels a name or
                       // "cusparse"
  SuiteZeros zeros;
  std::string records = {};         // sparse/records_choice.h; "speed" is empty here
  std::optional<DType> dtype = {};  // f16 or bf16; absent: that of the model, of kernels f16
  std::variant<EngineCell, KernelCell> what;

  const EngineCell* engine() const { return std::get_if<EngineCell>(&what); }
  const KernelCell* kernel() const { return std::get_if<KernelCell>(&what); }

  bool operator==(const SuiteCell&) const = default;
};

// A figure that the paper has in its text or in a table.
struct StatedFigure {
  // Of the cells that a pattern matches.
  enum class Statistic : uint8_t {
    each,          // what every one of them has
    mean,          // over them
    most,          // the largest of them
    least,         // the smallest
    share_faster,  // percent of them whose ratio is above 1
  };
  enum class Outcome : uint8_t { number, fits, out_of_memory };

  struct Point {
    std::string cells = {};  // matches_cell(); empty: the suite has none of this kind
    std::string over = {};   // of those that a ratio is over; empty: no ratio, or over none of ours
    std::string at = {};     // "8": by what points of one figure differ; empty: there is one alone
    Outcome outcome = Outcome::number;
    double value = 0.0;
  };

  std::string what;       // in words
  std::string metric;     // one of suite_metrics()
  std::string unit;       // "tokens/s"; "x": a ratio, above 1 where `cells` are better than `over`
  std::string place;      // "section 6.3"
  std::string gpu;        // on which it was measured
  std::string framework;  // in which; of a ratio, over which
  Statistic statistic = Statistic::each;
  std::vector<Point> points;  // at least one
};
std::string_view name_of(StatedFigure::Statistic statistic);

struct Suite {
  std::string name;  // of the file, without its ending
  std::string title;
  std::string source;     // "Flash-LLM (Xia et al., VLDB 2024), figure 13"
  std::string gpu;        // the paper's
  std::string framework;  // of the paper's baseline
  std::string metric;     // one of suite_metrics()
  std::vector<SuiteCell> cells;
  std::vector<StatedFigure> stated;
};

// Whether a pattern of names of cells matches one: * stands for any characters, ? for one, and |
// is between patterns of which one is enough, such as "*/1gpu/b8/*|*/1gpu/b16/*".
bool matches_cell(std::string_view pattern, std::string_view name);

// What a figure may be of: columns of the reports of `throughput` and `kernel`, and
// "tokens_per_second", which is over all GPUs together.
std::vector<std::string_view> suite_metrics();

}  // namespace sparsellm
