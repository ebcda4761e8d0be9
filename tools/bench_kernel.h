#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/device.h"
#include "kernels/base/dtype.h"
#include "tools/cold_cache.h"

namespace sparsellm {

struct KernelBenchOptions {
  std::vector<std::pair<int64_t, int64_t>> shapes;                // of the weights: out, in
  std::vector<int64_t> tokens{1, 8, 16, 32, 64, 128, 256, 1024};  // rows of x and y
  std::vector<double> sparsities{0.5, 0.6, 0.7, 0.8, 0.9};        // shares of zeros in the weight
  // Of kernel_bench_formats(). cuBLAS and cuBLASLt are always measured, cuSPARSE from a sparsity of
  // 0.5 on, and below if it is named here.
  std::vector<std::string> formats{"dense"};
  DType dtype = DType::f16;                 // or bf16
  int64_t repeat = 20;                      // replays that the median is taken over
  int64_t rotation_bytes = kRotationBytes;  // that the copies of a weight have together, at least
  Device device;                            // a CUDA device
  uint64_t seed = 1;
};

// y [tokens, out] = x [tokens, in] * W^T in one format, W cold in the cache. Figures that do not
// exist are 0: all times and rates of a result that is not verified.
struct KernelResult {
  int64_t out = 0;
  int64_t in = 0;
  int64_t tokens = 0;
  double sparsity = 0.0;
  std::string format;     // also "cublas", "cublaslt", "cusparse"
  std::string algorithm;  // the fastest of a library's; empty where there is no choice
  double median_us = 0.0;
  double min_us = 0.0;
  double max_us = 0.0;
  int64_t encoded_bytes = 0;              // of the weight that a product reads
  double read_gb_per_s = 0.0;             // encoded_bytes / median, in 10^9 bytes
  double fraction_of_read_ceiling = 0.0;  // of measure_read_bandwidth for so many bytes, same run
  double tflops = 0.0;                    // 2 * out * in * tokens / median: zeros count
  double speedup = 0.0;                   // over the faster of cuBLAS and cuBLASLt, same operands
  bool verified = false;
  double worst_error = 0.0;  // in units of the tolerance (tools/verify_product.h); infinite for NaN
  std::string note;          // why it is not verified, or which algorithms had to be left out
};

// What KernelBenchOptions::formats may name.
std::vector<std::string_view> kernel_bench_formats();

// All combinations, the formats through WeightMatrix::matmul. A kernel is verified on every copy of
// the weight before it is timed, and after the last replay. What fails, for want of memory too, is
// a result with a note. `on_result` gets every result as soon as it is complete. Throws Error for
// options that make no sense, and where there is no CUDA device.
std::vector<KernelResult> bench_kernels(const KernelBenchOptions& options,
                                        const std::function<void(const KernelResult&)>& on_result);

}  // namespace sparsellm
