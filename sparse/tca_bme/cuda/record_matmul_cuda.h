#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/base/exec.h"
#include "sparse/cuda_product_operands.h"
#include "sparse/tca_bme/cuda/record_device.h"
#include "sparse/tca_bme/quantized/quantized_layout.h"

namespace sparsellm {

// For each kind of ClusterCounts, with which row block (64 rows) each of them begins, and the
// number of row blocks; none where they are shared evenly.
using RecordShares = std::array<std::vector<int>, std::tuple_size_v<ClusterCounts>>;
// By the number of records first and their bytes second; `block_starts` as in RecordSizes
// (sparse/tca_bme/format/record_sizes.h).
RecordShares record_shares(std::span<const uint32_t> block_starts, const ClusterCounts& clusters);

// What the values of records are: of 16 bits (sparse/tca_bme/format/record_layout.h), or fewer
// (sparse/tca_bme/quantized/quantized_layout.h).
enum class RecordElements : uint8_t { halves, i8, f8, i4 };
constexpr RecordElements elements_of(tca_bme::QuantizedLayout::Values values) {
  using Values = tca_bme::QuantizedLayout::Values;
  return values == Values::i8   ? RecordElements::i8
         : values == Values::f8 ? RecordElements::f8
                                : RecordElements::i4;
}

// A matrix in the layout of tca_bme version 2 or 3 on the device.
struct RecordMatrix {
  const uint8_t* records = nullptr;  // 16-byte aligned
  const uint32_t* starts = nullptr;  // [R + 1], in units of 16 bytes
  int64_t rows = 0;
  int64_t columns = 0;
  int chunks = 4;  // of 16 columns
  bool pair = false;
  RecordElements elements = RecordElements::halves;
  int chunk_offsets = 32;                // of a chunk; 0: dense
  const float* scales = nullptr;         // [rows], of i8 and f8
  int group = 0;                         // of i4: columns that share a scale
  uint32_t largest_record = 0;           // bytes
  uint32_t common_record = 0;            // bytes, at most largest_record (RecordSizes)
  ClusterCounts clusters{};              // of the device
  MultistageDevice multistage{};         // likewise
  const RecordShares* shares = nullptr;  // on the host; none: shared evenly

  static size_t kind_of(int split) {
    return static_cast<size_t>(std::countr_zero(static_cast<unsigned>(split)));
  }
  bool narrow() const { return elements != RecordElements::halves; }
  int clusters_of(int split) const { return clusters[kind_of(split)]; }
  const std::vector<int>* shares_of(int split) const {  // nullptr: evenly
    return shares == nullptr || (*shares)[kind_of(split)].empty() ? nullptr
                                                                  : &(*shares)[kind_of(split)];
  }
};

// How a launch is cut up.
struct RecordMatmulConfig {
  int split = 1;   // thread blocks of a cluster, which share K (split-K): 1, 2, 4, 8 or 16
  int warps = 8;   // of a thread block: up to 16
  int passes = 1;  // parts of a thread block's columns; x of one at a time is in shared memory
  int stages = 0;  // records in flight for each warp; 0: as many as there is room for
  // By the kernel for any compute capability from 8.0 on
  // (sparse/tca_bme/cuda/record_multistage_cuda.h), which has nothing to choose.
  bool multistage = false;
  // Values of 8 or 4 bits are multiplied with x as integers of 16 bits, in blocks of columns with a
  // scale each, instead of becoming 16 bits wide themselves. For up to kMaxByteTokens.
  bool bytes = false;

  bool operator==(const RecordMatmulConfig&) const = default;
};
inline constexpr int64_t kMaxByteTokens = 16;
// What integers change x by, in parts of the largest of a block (quantized/cuda/x_integers.cuh).
inline constexpr double kRecordInputRounding = 0.5 / 32512;
std::string record_matmul_name(const RecordMatmulConfig& config);

// The product. The order of the sums depends on the matrix (its shape, and how many bytes its rows
// of records have) and the configuration only, not on the number of tokens: a configuration is
// batch-invariant. A launch for every 64 tokens; allocates nothing and does not synchronise. Leaves
// nothing in the workspace that a later launch could take for its own. With Launches::overlapping
// (PDL), records are read before what was enqueued before has ended. Throws Error for what the
// device does not hold.
void record_matmul_cuda(const RecordMatrix& matrix, const CudaProductOperands& operands,
                        const RecordMatmulConfig& config, const ExecContext& ctx);

// The configurations that may be the fastest for this many tokens, the best guess first; none if
// the device cannot run a kernel (they take compute capability 8.0 and above). Those for 64 tokens
// are possible for any number.
std::vector<RecordMatmulConfig> record_matmul_candidates(const RecordMatrix& matrix,
                                                         int64_t tokens);

// Whether there is room for the records of the matrix in products of up to this many tokens, and a
// kernel for them.
bool record_matmul_fits(const RecordMatrix& matrix, const RecordMatmulConfig& config,
                        int64_t tokens);

}  // namespace sparsellm
