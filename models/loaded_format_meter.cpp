#include "models/loaded_format_meter.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/token_buckets.h"
#include "kernels/fill_random.h"
#include "kernels/tune/make_meter.h"

namespace sparsellm {
namespace {

// Some times any L2.
constexpr int64_t kColdBytes = 256 << 20;

int64_t largest_workspace(const WeightMatrix& weight, int64_t most_tokens) {
  int64_t bytes = 0;
  for (const int64_t tokens : token_buckets_up_to(most_tokens)) {
    bytes = std::max(bytes, weight.workspace_bytes(tokens, Sums::fastest));
  }
  return bytes;
}

// Waits for what uses memory that is about to go, also by an exception.
class WaitAtEnd {
 public:
  explicit WaitAtEnd(const CudaContext& cuda) : cuda_(cuda) {}
  ~WaitAtEnd() { cuda_.wait(); }
  WaitAtEnd(const WaitAtEnd&) = delete;
  WaitAtEnd& operator=(const WaitAtEnd&) = delete;

 private:
  const CudaContext& cuda_;
};

}  // namespace

LoadedFormatMeter::LoadedFormatMeter(Options options, TuneCache& cache)
    : options_(std::move(options)), cache_(cache), cuda_(options_.device) {}

Linear LoadedFormatMeter::load(const JoinedLinear& layer, const LayerFormat& in) const {
  const std::unique_ptr<WeightLoader> loader = options_.loader(in);
  Linear linear = loader->linear(layer.request);
  loader->finish();
  return linear;
}

FormatMeter::Measured LoadedFormatMeter::measure(const LayerKind& kind, const LayerFormat& in,
                                                 std::span<const int64_t> tokens) {
  const Linear linear = load(kind.layer, in);
  cuda_.make_current();
  std::vector<std::unique_ptr<WeightMatrix>> copies;
  std::vector<const WeightMatrix*> alike{linear.weight.get()};
  const int64_t bytes = std::max(linear.weight->bytes(), int64_t{1});
  while (bytes * std::ssize(alike) < kColdBytes) {
    copies.push_back(linear.weight->copy());
    if (copies.back() == nullptr) {
      break;
    }
    alike.push_back(copies.back().get());
  }

  const int64_t most = *std::ranges::max_element(tokens);
  const int64_t most_in_step = std::max(most, options_.most_tokens);
  Workspace workspace(options_.device, largest_workspace(*linear.weight, most_in_step));
  ExecContext ctx{
      .device = options_.device, .workspace = workspace, .threads = threads_, .cuda = &cuda_};
  const DType dtype = kind.weight.dtype;
  const OwnedTensor x = allocate_scratch(ctx, dtype, {most, kind.layer.columns}, "a trial");
  const OwnedTensor y = allocate_scratch(ctx, dtype, {most, kind.layer.rows}, "a trial");
  const WaitAtEnd wait(cuda_);
  fill_random({.key = 1}, Tensor(x.view.raw(), dtype, {x.view.element_count()}, options_.device),
              ctx);
  const Epilogue epilogue{.bias = linear.bias.view, .activation = linear.activation};
  alike.front()->tune({.alike = alike,
                       .epilogue = epilogue,
                       .y = dtype,
                       .tokens = tokens,
                       .most_tokens = most_in_step},
                      cache_, ctx);

  const std::unique_ptr<TuneMeter> meter = make_cuda_meter(ctx);
  Measured measured{.bytes = linear.weight->bytes()};
  size_t turn = 0;
  for (const int64_t rows : tokens) {
    const TuneMeter::Call call{.enqueue =
                                   [&] {
                                     alike[turn++ % alike.size()]->matmul(
                                         x.view.rows(0, rows), y.view.rows(0, rows), epilogue, ctx);
                                   },
                               .tokens = rows,
                               .bytes_in_turn = bytes * std::ssize(alike)};
    measured.seconds.push_back(
        meter->seconds(call, std::numeric_limits<double>::infinity()).value());
  }
  return measured;
}

}  // namespace sparsellm
