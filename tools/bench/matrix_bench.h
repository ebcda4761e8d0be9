#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/cpu_isa.h"
#include "kernels/base/device.h"
#include "kernels/base/dtype.h"
#include "sparse/general_sparse/general_matrix.h"
#include "tools/bench/cold_cache.h"
#include "tools/bench/matrix_contender.h"
#include "tools/bench/matrix_search.h"
#include "tools/bench/matrix_source.h"
#include "tools/bench/turns.h"
#include "tools/cli/statistics.h"

namespace sparsellm {

struct MatrixBenchOptions {
  std::vector<MatrixSource> matrices = {};
  std::vector<int64_t> columns{8, 32, 64};  // N: of B and C
  std::vector<general_sparse::Order> orders{general_sparse::Order::rows};
  MatrixSearch search = {};
  std::string layout = {};   // of A as general_sparse, as its text; empty: by rule
  DType dtype = DType::f32;  // or f16, bf16; of A, and on CUDA of B and C, which on the CPU are f32
  int64_t repeat = 20;       // replays that the median is taken over
  // Bytes of other copies of A, of B and of C that are read or written, at least, between two
  // products with the same copy of A.
  int64_t rotation_bytes = kRotationBytes;
  Device device = {};
  int threads = 0;                  // of the CPU device; 0: usable_cores()
  CpuIsa cpu_isa = best_cpu_isa();  // of the CPU device
  uint64_t seed = 1;                // of B, and of the rows that are verified
};

// C [M, N] = A [M, K] * B [K, N] by one contender, A cold in the cache. Figures that do not exist
// are 0: all times and rates of a result that is not verified.
struct MatrixResult {
  std::string matrix = {};
  std::string matrix_class = {};
  int64_t rows = 0;     // M
  int64_t columns = 0;  // K
  int64_t nonzeros = 0;
  double mean_row = 0.0;  // nonzeros of a row
  int64_t longest_row = 0;
  int64_t n = 0;
  general_sparse::Order order = general_sparse::Order::rows;  // of B and C
  std::string contender = {};
  MatrixContenderKind::Role role = MatrixContenderKind::Role::measured;
  std::string algorithm = {};  // the fastest of a library's; the plan of a format
  int64_t bytes = 0;           // of A that a product reads
  Spread us = {};
  double gflops = 0.0;        // 2 * nonzeros * N / median: zeros do not count
  double gb_per_s = 0.0;      // A's bytes, B and C once each / median, in 10^9 bytes
  std::string baseline = {};  // the fastest of the sparse libraries': "cusparse CSR_ALG2"
  double baseline_us = 0.0;   // by turns with this
  double speedup = 0.0;       // over that
  std::optional<Verdict> verdict = {};
  double dense_us = 0.0;  // of the fastest that is dense, measured by itself
  double dense_speedup = 0.0;
  bool verified = false;
  double worst_error = 0.0;  // in units of the tolerance; infinite for NaN
  std::string note = {};     // why it is not verified, or which algorithms had to be left out
};

// Throws Error for options that make no sense.
void check_options(const MatrixBenchOptions& options);

// Matrix by matrix, each in memory only as long as it is measured; order by order and N by N. Of a
// library that algorithm counts which is fastest over a few replays, and right. What is measured
// then takes turns with the fastest of the sparse libraries, on the same B; dense products are
// measured by themselves. All are verified before on every copy of A, and after the last replay,
// with C poisoned before (tools/bench/matrix_reference.h). What fails, for want of memory too, is a
// result with a note. `on_result` gets every result as soon as it is complete. Throws Error for
// options that make no sense.
std::vector<MatrixResult> bench_matrices(const MatrixBenchOptions& options,
                                         const std::vector<MatrixContenderKind>& contenders,
                                         const std::function<void(const MatrixResult&)>& on_result);

// "rows", "columns".
std::string_view name_of(general_sparse::Order order);

}  // namespace sparsellm
