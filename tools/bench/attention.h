#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/base/device.h"
#include "tools/bench/attention_operands.h"
#include "tools/cli/report.h"
#include "tools/cli/statistics.h"

namespace sparsellm {

struct AttentionBenchOptions {
  std::vector<int64_t> requests{64};
  std::vector<int64_t> contexts{2048};
  int64_t heads = 40;
  int64_t kv_heads = 40;
  int64_t head_dim = 128;
  DType dtype = DType::f16;  // or bf16
  bool prefill = false;      // else decode
  int64_t window = 0;        // positions that a row sees; 0: all before it
  int64_t repeat = 20;       // replays that the median is taken over
  Device device = {};
  uint64_t seed = 1;
  double read_bandwidth = 0.0;  // measured, in bytes per second
};

// A call of attention() for some number of requests and context. Figures that do not exist are 0:
// all of them where there is not enough memory.
struct AttentionResult {
  AttentionShape shape;
  bool measured = false;  // and verified
  Spread us;
  // Of a decode step: shape.kv_bytes() / median, in 10^9 bytes, and as a share of the bandwidth.
  double read_gb_per_s = 0.0;
  double fraction_of_bandwidth = 0.0;
  // Of prefill: a row is multiplied by half of the keys and values on average.
  double tflops = 0.0;
  double worst_error = 0.0;  // in units of the tolerance (tools/bench/verify_attention.h)
  std::string note;
};

// Both throw Error: for options that make no sense, whatever the device; and for the CPU.
void check_options(const AttentionBenchOptions& options);
void check_attention_device(Device device);

// All combinations of requests and contexts. Calls with operands of their own take turns, so that
// none finds its keys and values in the L2, as replays of a graph; all calls are verified at random
// places before and after. What fails for want of memory is a result with a note. `on_result` gets
// every result as soon as it is complete. Throws Error for options that make no sense, on the CPU,
// and for a wrong result.
void bench_attention(const AttentionBenchOptions& options,
                     const std::function<void(const AttentionResult&)>& on_result);

// Adds the table "attention".
void report_attention(const AttentionBenchOptions& options, ReportWriter& report);

std::vector<Column> attention_columns();
Row attention_row(const AttentionResult& result);

}  // namespace sparsellm
