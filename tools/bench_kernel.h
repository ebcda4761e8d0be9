#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/device.h"
#include "kernels/base/dtype.h"
#include "kernels/zero_pattern.h"
#include "tools/bench_statistics.h"
#include "tools/cold_cache.h"

namespace sparsellm {

struct KernelBenchOptions {
  std::vector<std::pair<int64_t, int64_t>> shapes;                // of the weights: out, in
  std::vector<int64_t> tokens{1, 8, 16, 32, 64, 128, 256, 1024};  // rows of x and y
  std::vector<double> sparsities{0.5, 0.6, 0.7, 0.8, 0.9};        // shares of zeros in the weight,
  std::vector<ZeroPattern> patterns{ZeroPattern()};               // which lie so
  // Of kernel_bench_formats(). What is dense is always measured: cuBLAS, cuBLASLt and "dense", on
  // the CPU the latter alone.
  std::vector<std::string> formats{"dense"};
  DType dtype = DType::f16;                 // or bf16; the activations of the CPU are f32
  int64_t repeat = 20;                      // replays that the median is taken over
  int64_t rotation_bytes = kRotationBytes;  // that the copies of a weight have together, at least
  Device device;
  uint64_t seed = 1;
  bool profile = false;  // one more launch of each kernel in profile_cuda(), on CUDA
};

// y [tokens, out] = x [tokens, in] * W^T in one format, W cold in the cache. Figures that do not
// exist are 0: all times and rates of a result that is not verified.
struct KernelResult {
  int64_t out = 0;
  int64_t in = 0;
  int64_t tokens = 0;
  double sparsity = 0.0;
  ZeroPattern pattern;                  // of the zeros
  std::string format;                   // also "cublas", "cublaslt", "cusparse"
  std::string algorithm;                // the fastest of a library's; the plan of a format,
                                        // which may be another with overlapping launches
  Spread us;                            // with ordinary launches, as all that is not overlapped
  std::optional<Spread> overlapped_us;  // with launches as the engine has them, if they may differ
  int64_t encoded_bytes = 0;            // of the weight that a product reads
  double fraction_of_dense = 0.0;       // encoded_bytes / 2 * out * in
  double read_gb_per_s = 0.0;           // encoded_bytes / median, in 10^9 bytes
  double fraction_of_read_ceiling = 0.0;  // of measure_read_bandwidth for so many bytes, same run
  double tflops = 0.0;                    // 2 * out * in * tokens / median: zeros count
  // What the speed-ups are over, 0 if there is nothing. Of a sparse format, cuSPARSE's too, for
  // this shape and these tokens, whatever the zeros: with ordinary launches the faster of cuBLAS
  // and cuBLASLt (on the CPU, the engine's dense products), with overlapping ones the fastest of
  // all that is dense, the engine's own launched so too. Of what is dense: the faster of cuBLAS and
  // cuBLASLt, same operands.
  double baseline_us = 0.0;
  double overlapped_baseline_us = 0.0;
  double speedup = 0.0;
  double overlapped_speedup = 0.0;
  bool verified = false;
  double worst_error = 0.0;  // in units of the tolerance (tools/verify_product.h); infinite for NaN
  std::string note;          // why it is not verified, or which algorithms had to be left out

  bool is_dense() const;
};

// What KernelBenchOptions::formats may name on a device.
std::vector<std::string_view> kernel_bench_formats(Device device);

// Throws Error for options that make no sense.
void check_options(const KernelBenchOptions& options);

// All combinations, the formats through WeightMatrix::matmul, as ProductMeter measures them; shape
// by shape, what is dense first. What fails, for want of memory too, is a result with a note.
// `on_result` gets every result as soon as it is complete. Throws Error for options that make no
// sense.
std::vector<KernelResult> bench_kernels(const KernelBenchOptions& options,
                                        const std::function<void(const KernelResult&)>& on_result);

}  // namespace sparsellm
