#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/cpu_isa.h"
#include "kernels/base/device.h"
#include "kernels/base/dtype.h"
#include "sparse/activation/votes.h"
#include "tools/bench/cold_cache.h"
#include "tools/bench/mlp_contender.h"
#include "tools/bench/mlp_reference.h"
#include "tools/bench/turns.h"
#include "tools/cli/report.h"
#include "tools/cli/statistics.h"

namespace sparsellm {

struct MlpBenchOptions {
  // Of Llama-2 7B and 13B, and of OPT 13B and 30B.
  std::vector<MlpShape> shapes{{.neurons = 11008, .hidden = 4096},
                               {.neurons = 13824, .hidden = 5120},
                               {.neurons = 20480, .hidden = 5120, .gated = false},
                               {.neurons = 28672, .hidden = 7168, .gated = false}};
  std::vector<int64_t> tokens{1, 2, 4, 8};
  NeuronShares shares{.predicted = 0.9, .zeros = 0.9};
  Votes votes = Votes::weighted;
  DType dtype = DType::f16;                 // or bf16; the activations of the CPU are f32
  int64_t repeat = 20;                      // replays that the median is taken over
  int64_t rotation_bytes = kRotationBytes;  // that are read before a copy comes up again
  Device device;
  int threads = 0;                  // of the CPU device; 0: usable_cores()
  CpuIsa cpu_isa = best_cpu_isa();  // of the CPU device
  uint64_t seed = 1;
  // Instead of the parts: the whole MLP as SparseInfer has it, without and with its ideas
  // (MlpAblation), beside ours and the dense one, at kAblationAlphas. Of MLPs with a gate, for one
  // token, on CUDA.
  bool ablation = false;
};

// The alphas of figure 4 of SparseInfer (Shin et al., DATE 2025), as factors of the alpha that
// predicts NeuronShares::predicted: with random weights an alpha of 1 would predict half of the
// neurons, where a ReLU-fied model has most of them.
inline constexpr std::array kAblationAlphas{1.00f, 1.01f, 1.02f, 1.03f};

// How a whole MLP fares against the dense one, with the same kind of launches, by turns with it.
struct MlpComparison {
  double dense_us = 0.0;  // 0: not compared
  double speedup = 0.0;
  std::optional<Verdict> verdict;
};

// Figures that do not exist are 0: all times and rates of a result that is not verified.
struct MlpResult {
  MlpShape shape;
  int64_t tokens = 0;
  MlpPart part = MlpPart::dense;
  MlpAblation variant = MlpAblation::neither;  // of MlpPart::ablated
  float alpha_factor = 1.0f;                   // one of kAblationAlphas, or 1
  SignPrediction prediction;
  float threshold = 0.0f;  // of FATReLU
  MlpShares shares;
  Spread us;                            // with ordinary launches
  std::optional<Spread> overlapped_us;  // with launches as the engine has them, on CUDA
  MlpComparison compared;
  MlpComparison overlapped_compared;
  // Of weights and sign words, those that the tokens need, once for all of them.
  int64_t bytes_read = 0;
  double read_gb_per_s = 0.0;             // bytes_read / median, in 10^9 bytes
  double fraction_of_read_ceiling = 0.0;  // of measure_read_bandwidth for so many bytes, same run
  int64_t sign_bytes = 0;                 // of bytes_read
  int64_t xors = 0;                       // of its predictions (tools/bench/mlp_bytes.h)
  bool verified = false;
  double worst_error = 0.0;  // in units of what MlpReference allows
  std::string note;          // why it is not verified

  MlpSubject subject() const { return {part, variant}; }
};

// Throws Error for options that make no sense.
void check_options(const MlpBenchOptions& options);
// Nor anything that is not taken apart, on a device that it is not taken apart on.
void check_ablation(const MlpBenchOptions& options);

// All shapes, parts (kMlpParts; the CPU has nothing that is fused) and tokens, with random weights
// and tokens. As many copies of the weights take turns that what they read together is cold in the
// cache, in replays of a graph or by the clock as ProductMeter does it. Every copy is verified
// before the timing, with either kind of launches, and the last after it. What fails, for want of
// memory too, is a result with a note. Throws Error for options that make no sense.
std::vector<MlpResult> bench_mlps(const MlpBenchOptions& options,
                                  const std::function<void(const MlpResult&)>& on_result);

// Adds the table "mlp" or "mlp ablation", a row for each result as it comes.
void report_mlps(const MlpBenchOptions& options, ReportWriter& report);

std::vector<Column> mlp_columns();
Row mlp_row(const MlpResult& result);
// The same with the factor of alpha before the part: of the table "mlp ablation".
std::vector<Column> mlp_ablation_columns();
Row mlp_ablation_row(const MlpResult& result);

}  // namespace sparsellm
