#include "tools/bench/tune.h"

#include <chrono>
#include <string>

#include "kernels/base/cuda_context.h"
#include "kernels/base/error.h"
#include "kernels/base/tune_cache.h"
#include "kernels/fill_random.h"
#include "sparse/dense/dense.h"
#include "tools/bench/cold_cache.h"
#include "tools/cli/interrupt.h"

namespace sparsellm {
namespace {

using Clock = std::chrono::steady_clock;

// Epilogues of the linear layers of OPT and Llama.
struct Kind {
  const char* name;
  bool has_bias;
  Activation::Kind activation;
};
constexpr Kind kKinds[] = {{"plain", false, Activation::Kind::none},
                           {"bias", true, Activation::Kind::none},
                           {"bias and relu", true, Activation::Kind::relu}};

OwnedTensor random_tensor(std::initializer_list<int64_t> sizes, uint64_t key,
                          const TuneOptions& options, ExecContext& ctx) {
  OwnedTensor tensor = allocate_tensor(options.device, options.dtype, sizes, "a weight to tune");
  const Tensor flat(tensor.view.raw(), options.dtype, {tensor.view.element_count()},
                    options.device);
  fill_random({.key = key}, flat, ctx);
  ctx.cuda->synchronize();  // before anything may free the tensor
  return tensor;
}

}  // namespace

std::vector<Column> tune_columns() {
  return {{.key = "what", .title = "what", .kind = Column::Kind::text},
          {.key = "choices_measured", .title = "choices measured"},
          {.key = "seconds", .title = "time", .unit = "s", .decimals = 2}};
}

void tune_shapes(const TuneOptions& options, ReportWriter& report) {
  require(options.device.is_cuda(), "there is nothing to tune on {}", to_string(options.device));
  CudaContext cuda(options.device);
  Workspace workspace(options.device, 0);
  ThreadPool threads(1);
  ExecContext ctx{
      .device = options.device, .workspace = workspace, .threads = threads, .cuda = &cuda};
  TuneCache cache(options.cache);
  require(cache.problem().empty(), "{}", cache.problem());
  report.begin_table("tune", tune_columns());
  for (const auto& [out, in] : options.shapes) {
    const int64_t bytes = checked_mul(checked_mul(out, in, "elements of a weight"),
                                      size_of(options.dtype), "bytes of a weight");
    std::vector<std::unique_ptr<DenseWeight>> copies;
    std::vector<const WeightMatrix*> alike;
    for (int64_t i = cold_copies(bytes, kRotationBytes); i > 0; --i) {
      copies.push_back(std::make_unique<DenseWeight>(
          random_tensor({out, in}, random_key(options.seed, std::to_string(i)), options, ctx)));
      alike.push_back(copies.back().get());
    }
    const OwnedTensor bias = random_tensor({out}, options.seed, options, ctx);
    for (const Kind& kind : kKinds) {
      throw_if_interrupted();
      const Clock::time_point start = Clock::now();
      const Epilogue epilogue{.bias = kind.has_bias ? bias.view : Tensor(),
                              .activation = {.kind = kind.activation}};
      const int64_t measured = alike.front()->tune(
          {.alike = alike, .epilogue = epilogue, .y = options.dtype, .tokens = options.tokens},
          cache, ctx);
      cache.save();
      report.add_row({fmt::format("{}x{}, {}", out, in, kind.name), measured,
                      std::chrono::duration<double>(Clock::now() - start).count()});
    }
  }
}

}  // namespace sparsellm
