#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/cpu_isa.h"
#include "kernels/base/device.h"
#include "kernels/base/dtype.h"
#include "kernels/zero_pattern.h"
#include "tools/bench/cold_cache.h"
#include "tools/bench/turns.h"
#include "tools/cli/statistics.h"

namespace sparsellm {

struct KernelBenchOptions {
  std::vector<std::pair<int64_t, int64_t>> shapes;                // of the weights: out, in
  std::vector<int64_t> tokens{1, 8, 16, 32, 64, 128, 256, 1024};  // rows of x and y
  std::vector<double> sparsities{0.5, 0.6, 0.7, 0.8, 0.9};        // shares of zeros in the weight,
  std::vector<ZeroPattern> patterns{ZeroPattern()};               // which lie so
  // Of kernel_bench_formats(). What is dense is always measured: dense_contenders(), on the CPU
  // "dense" alone.
  std::vector<std::string> formats{"dense"};
  std::string layout = {};                  // of general_sparse, as its text; empty: by rule
  std::string records = {};                 // of tca_bme (sparse/records_choice.h)
  DType dtype = DType::f16;                 // or bf16; the activations of the CPU are f32
  int64_t repeat = 20;                      // replays that the median is taken over
  int64_t rotation_bytes = kRotationBytes;  // that the copies of a weight have together, at least
  Device device;
  int threads = 0;                  // of the CPU device; 0: usable_cores()
  CpuIsa cpu_isa = best_cpu_isa();  // of the CPU device
  uint64_t seed = 1;
  bool profile = false;  // one more launch of each kernel in profile_cuda(), on CUDA
};

// How a product fares against the fastest of all that is dense for the same shape and tokens, whose
// sums are in f32 as its own, with the same kind of launches; those of a library are of either
// kind. Which one that is does not depend on the zeros: it is found on the first weight of the
// shape.
struct KernelComparison {
  std::string baseline;            // its name; empty: there is none
  double baseline_us = 0.0;        // of a sparse product: by turns with it, of the same operands
  double speedup = 0.0;            // over that
  std::optional<Verdict> verdict;  // where they took turns
  double library_speedup = 0.0;    // over library_us
};

// y [tokens, out] = x [tokens, in] * W^T in one format, W cold in the cache. Figures that do not
// exist are 0: all times and rates of a result without has_times().
struct KernelResult {
  int64_t out = 0;
  int64_t in = 0;
  int64_t tokens = 0;
  double sparsity = 0.0;
  ZeroPattern pattern;  // of the zeros
  std::string format;  // also "cublas", "cublaslt", "cublas-reduced", "cusparse", and beside narrow
                       // values kFp8Contender and kInt4Ceiling (tools/bench/dense_baseline.h)
  std::string algorithm;                // the fastest of a library's; the plan of a format,
                                        // which may be another with overlapping launches
  Spread us;                            // with ordinary launches, as all that is not overlapped
  std::optional<Spread> overlapped_us;  // with launches as the engine has them, if they may differ
  int64_t encoded_bytes = 0;            // of the weight that a product reads
  double fraction_of_dense = 0.0;       // encoded_bytes / 2 * out * in
  double read_gb_per_s = 0.0;           // encoded_bytes / median, in 10^9 bytes
  double fraction_of_read_ceiling = 0.0;  // of measure_read_bandwidth for this many bytes, same run
  double tflops = 0.0;                    // 2 * out * in * tokens / median: zeros count
  // On the CPU: seconds * threads * measure_cpu_clock() / (out * in). With wide vectors on all
  // cores the clock may be lower than that, and so the cycles.
  double cycles_per_element = 0.0;
  // With ordinary launches, and with overlapping ones where they may differ.
  KernelComparison compared;
  KernelComparison overlapped_compared;
  // Of the faster of cuBLAS and cuBLASLt for this shape and these tokens, with the zeros of the
  // first weight of the shape.
  double library_us = 0.0;
  bool verified = false;
  bool computed = false;  // from measure_read_bandwidth() alone: no product ran, none was verified
  // In units of the tolerance (tools/bench/verify_product.h); infinite for NaN. "cublas-reduced"
  // and FP8 are verified up to Contender::error_limit(), all others up to 1.
  double worst_error = 0.0;
  std::string note;  // why it is not verified, or which algorithms had to be left out

  bool is_dense() const;
  bool has_times() const { return verified || computed; }
};

// What KernelBenchOptions::formats may name on a device.
std::vector<std::string_view> kernel_bench_formats(Device device);

// Throws Error for options that make no sense.
void check_options(const KernelBenchOptions& options);

// All combinations, the formats through WeightMatrix::matmul, as ProductMeter measures them. Shape
// by shape what is dense first, whose work does not depend on where the zeros are, and so with the
// first sparsity and pattern alone: there are no results of it for others. Then each sparse format
// with every sparsity and pattern, by turns with the fastest that is dense, on the same weight.
// Beside narrow values there is once for a shape, after what is dense, what is_narrow_dense(): FP8
// of the same operands rounded once more, on CUDA, with as many columns as there are tokens or with
// the next multiple of 16, whichever is faster; and the computed time of int4.
// Algorithms of dense products are chosen once for a shape and a number of tokens. What fails, for
// want of memory too, is a result with a note.
// `on_result` gets every result as soon as it is complete. Throws Error for options that make no
// sense.
std::vector<KernelResult> bench_kernels(const KernelBenchOptions& options,
                                        const std::function<void(const KernelResult&)>& on_result);

}  // namespace sparsellm
