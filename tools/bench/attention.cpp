#include "tools/bench/attention.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "kernels/attention.h"
#include "kernels/base/cuda_context.h"
#include "kernels/base/device_info.h"
#include "kernels/base/error.h"
#include "tools/bench/cold_cache.h"
#include "tools/bench/device_rest.h"
#include "tools/bench/replay_timer.h"
#include "tools/bench/requests.h"
#include "tools/bench/verify_attention.h"
#include "tools/bench/verify_product.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/statistics.h"

namespace sparsellm {
namespace {

constexpr int64_t kPlaces = 32;     // that are verified, over all copies
constexpr int64_t kCachesRead = 4;  // until a copy comes up again: then none of it is in the L2

class AttentionBench {
 public:
  explicit AttentionBench(const AttentionBenchOptions& options)
      : options_(options),
        cold_bytes_(kCachesRead * query_gpu(options.device.index).l2_bytes),
        cuda_(options.device),
        workspace_(options.device, attention_workspace_bytes(options.device, options.heads,
                                                             options.kv_heads, options.head_dim)),
        threads_(1),
        ctx_{
            .device = options.device, .workspace = workspace_, .threads = threads_, .cuda = &cuda_},
        random_(options.seed) {}

  AttentionResult bench(int64_t requests, int64_t context) {
    AttentionResult result;
    result.shape = {.requests = requests,
                    .context = context,
                    .heads = options_.heads,
                    .kv_heads = options_.kv_heads,
                    .head_dim = options_.head_dim,
                    .dtype = options_.dtype,
                    .prefill = options_.prefill,
                    .window = options_.window};
    try {
      measure(result);
    } catch (const OutOfMemory& error) {
      result.note = error.what();
    }
    return result;
  }

 private:
  void measure(AttentionResult& result) {
    const AttentionShape& shape = result.shape;
    const int64_t kv_bytes = shape.kv_bytes();
    const AttentionOperands operands(
        shape, cold_copies(kv_bytes, std::max(kRotationBytes, cold_bytes_)), options_.seed, ctx_);
    const auto enqueue = [&](int64_t copy) {
      attention(operands.q(copy), operands.kv(), operands.batch(copy), operands.params(),
                operands.y(copy), ctx_);
    };
    poison(operands.all_y(), ctx_);
    for (int64_t copy = 0; copy < operands.copies(); ++copy) {
      enqueue(copy);
    }
    cuda_.synchronize();
    const std::vector<AttentionReference> references = make_references(shape, operands);
    verify(operands, references, result);

    // What was timed is verified too: a replay may differ from the calls that it was captured from.
    poison(operands.all_y(), ctx_);
    rest_.rest();
    result.us =
        scaled(time_replays(cuda_, operands.copies(), enqueue, options_.repeat), kMicroseconds);
    cuda_.synchronize();
    verify(operands, references, result);

    const double seconds = result.us.median / kMicroseconds;
    if (shape.prefill) {
      result.tflops = 4.0 * shape.seen_tokens() * static_cast<double>(shape.head_dim) *
                      static_cast<double>(shape.heads) * static_cast<double>(shape.requests) /
                      seconds * 1e-12;
    } else {
      const double bytes_per_second = static_cast<double>(kv_bytes) / seconds;
      result.read_gb_per_s = bytes_per_second * 1e-9;
      result.fraction_of_bandwidth =
          options_.read_bandwidth > 0.0 ? bytes_per_second / options_.read_bandwidth : 0.0;
    }
    if (operands.copies() * kv_bytes < cold_bytes_) {
      result.note = fmt::format("{} copies are too few to be out of the L2", operands.copies());
    }
    result.measured = true;
  }

  // Places of every copy; among them the last one of the first.
  std::vector<AttentionReference> make_references(const AttentionShape& shape,
                                                  const AttentionOperands& operands) {
    const int64_t each = (kPlaces + operands.copies() - 1) / operands.copies();
    std::vector<AttentionPlace> places{{.request = shape.requests - 1,
                                        .row = shape.rows_per_request() - 1,
                                        .head = shape.heads - 1}};
    std::vector<AttentionReference> references;
    for (int64_t copy = 0; copy < operands.copies(); ++copy) {
      throw_if_interrupted();
      while (std::ssize(places) < each) {
        places.push_back({.request = random_.uniform(0, shape.requests - 1),
                          .row = random_.uniform(0, shape.rows_per_request() - 1),
                          .head = random_.uniform(0, shape.heads - 1)});
      }
      references.emplace_back(operands.q(copy), operands.kv(), operands.batch(copy),
                              operands.params(), places);
      places.clear();
    }
    return references;
  }

  static void verify(const AttentionOperands& operands,
                     const std::vector<AttentionReference>& references, AttentionResult& result) {
    for (int64_t copy = 0; copy < operands.copies(); ++copy) {
      result.worst_error = std::max(
          result.worst_error, references[static_cast<size_t>(copy)].worst_error(operands.y(copy)));
    }
    require(result.worst_error <= 1.0,
            "attention of {} requests with a context of {}: wrong result: the worst error is "
            "{:.3g} times the tolerance",
            result.shape.requests, result.shape.context, result.worst_error);
  }

  const AttentionBenchOptions& options_;
  int64_t cold_bytes_;
  CudaContext cuda_;
  Workspace workspace_;
  ThreadPool threads_;
  ExecContext ctx_;
  BenchRandom random_;
  DeviceRest rest_;
};

}  // namespace

void check_options(const AttentionBenchOptions& options) {
  require(options.dtype == DType::f16 || options.dtype == DType::bf16,
          "attention is benchmarked in f16 and bf16, not in {}", name_of(options.dtype));
  require(options.repeat > 0, "{} replays have no median", options.repeat);
  require(options.kv_heads > 0 && options.heads > 0 && options.heads % options.kv_heads == 0,
          "{} heads cannot share {} key/value heads", options.heads, options.kv_heads);
  require(options.head_dim > 0 && options.head_dim % 8 == 0 && options.head_dim <= kMaxHeadDim,
          "a head_dim of {} is not a multiple of 8 up to {}", options.head_dim, kMaxHeadDim);
  for (const int64_t requests : options.requests) {
    for (const int64_t context : options.contexts) {
      require(requests > 0 && context > 0, "attention of {} requests with a context of {}",
              requests, context);
      const AttentionShape shape{
          .requests = requests, .context = context, .prefill = options.prefill};
      require(shape.rows() <= std::numeric_limits<int32_t>::max(),
              "{} requests of {} rows are more than one call takes", requests, context);
    }
  }
}

void check_attention_device(Device device) {
  require(device.is_cuda(), "attention is measured on CUDA alone, not on {}", to_string(device));
}

void bench_attention(const AttentionBenchOptions& options,
                     const std::function<void(const AttentionResult&)>& on_result) {
  check_options(options);
  check_attention_device(options.device);
  AttentionBench bench(options);
  for (const int64_t requests : options.requests) {
    for (const int64_t context : options.contexts) {
      throw_if_interrupted();
      on_result(bench.bench(requests, context));
    }
  }
}

std::vector<Column> attention_columns() {
  using Kind = Column::Kind;
  return {
      {.key = "phase", .title = "phase", .kind = Kind::text},
      {.key = "requests", .title = "requests"},
      {.key = "context", .title = "context"},
      {.key = "window", .title = "window"},
      {.key = "heads", .title = "heads"},
      {.key = "kv_heads", .title = "KV heads"},
      {.key = "head_dim", .title = "head dim"},
      {.key = "dtype", .title = "dtype", .kind = Kind::text},
      {.key = "time_us", .title = "time", .unit = "us", .kind = Kind::spread, .decimals = 1},
      {.key = "kv_bytes", .title = "K and V", .unit = "bytes"},
      {.key = "read_gb_per_s", .title = "read", .unit = "GB/s"},
      {.key = "percent_of_bandwidth", .title = "of bandwidth", .unit = "%", .decimals = 1},
      {.key = "tflops", .title = "rate", .unit = "TFLOP/s", .decimals = 1},
      {.key = "worst_error", .title = "error", .unit = "of tolerance", .decimals = 2},
      {.key = "note", .title = "note", .kind = Kind::text},
  };
}

Row attention_row(const AttentionResult& result) {
  const AttentionShape& shape = result.shape;
  Row row{shape.prefill ? "prefill" : "decode",
          shape.requests,
          shape.context,
          shape.window > 0 ? Cell(shape.window) : Cell(),
          shape.heads,
          shape.kv_heads,
          shape.head_dim,
          std::string(name_of(shape.dtype))};
  row.insert(row.end(),
             {result.measured ? Cell(result.us) : Cell(), shape.kv_bytes(),
              known_cell(result.read_gb_per_s), known_cell(100.0 * result.fraction_of_bandwidth),
              known_cell(result.tflops), result.measured ? Cell(result.worst_error) : Cell(),
              result.note});
  return row;
}

void report_attention(const AttentionBenchOptions& options, ReportWriter& report) {
  report.begin_table("attention", attention_columns());
  bench_attention(options,
                  [&](const AttentionResult& result) { report.add_row(attention_row(result)); });
}

}  // namespace sparsellm
