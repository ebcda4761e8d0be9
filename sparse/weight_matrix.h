#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"
#include "kernels/base/tune_cache.h"
#include "kernels/epilogue.h"

namespace sparsellm {

class WeightMatrix;

// What matmul() will be called with.
struct MatmulTuning {
  std::span<const WeightMatrix* const> alike;  // of one format and shape, to be read in turn
  Epilogue epilogue;
  DType y = DType::f16;
  std::span<const int64_t> tokens;
  // That the workspace of those calls is large enough for; less than the largest of `tokens`: that.
  int64_t most_tokens = 0;
};

struct Range {
  int64_t begin = 0;
  int64_t count = 0;
};

// Of a matrix: some rows, and of these some columns.
struct Slice {
  Range rows;
  Range columns;
};

// A weight [out, in] on its device, in whatever format it is stored; immutable after load.
class WeightMatrix {
 public:
  virtual ~WeightMatrix() = default;

  virtual std::string_view format() const = 0;  // its name
  virtual int64_t out() const = 0;
  virtual int64_t in() const = 0;
  virtual DType dtype() const = 0;    // of its values
  virtual int64_t bytes() const = 0;  // that a product reads
  // Of its elements, where the encoding counts them.
  virtual std::optional<int64_t> nonzeros() const { return {}; }

  // y [tokens, out] = epilogue(x [tokens, in] * W^T); any number of tokens; y must not overlap x.
  virtual void matmul(const Tensor& x, Tensor y, const Epilogue& epilogue,
                      ExecContext& ctx) const = 0;

  // dense [rows.count, in], contiguous, in the dtype of the weight: these rows.
  virtual void expand(Range rows, Tensor dense, ExecContext& ctx) const = 0;

  // What matmul() of this many tokens takes from the workspace at most, and of fewer in the same
  // bucket (kernels/base/token_buckets.h). Other buckets may take more; what is tuned may take as
  // much as that of the most tokens that the tuning was given.
  virtual int64_t workspace_bytes(int64_t tokens, Sums sums) const = 0;

  // Chooses kernels for such calls of all weights alike in this context, with its kind of launches:
  // from the cache, or by measuring, which puts the choices there. Takes device memory for a while
  // and synchronises. Returns how many choices it measured.
  virtual int64_t tune(const MatmulTuning& what, TuneCache& cache, ExecContext& ctx) const = 0;

  // A line about what this device does with such weights that a user would want to know when a
  // model is loaded, as that products are expanded; mostly none.
  virtual std::string notice() const { return {}; }

  // For measurements and their reports.

  // The same weight in memory of its own on the same device; nothing where a class has no copies.
  virtual std::unique_ptr<WeightMatrix> copy() const { return nullptr; }
  // What matmul() of this many tokens may change each element of x by before it multiplies, in
  // parts of the largest magnitude of its token.
  virtual double input_rounding([[maybe_unused]] DType y, [[maybe_unused]] int64_t tokens,
                                [[maybe_unused]] const ExecContext& ctx) const {
    return 0.0;
  }
  // How matmul() of this many tokens computes a y of this dtype in this context; empty where there
  // is no choice, or none that is known.
  virtual std::string plan_text([[maybe_unused]] DType y, [[maybe_unused]] int64_t tokens,
                                [[maybe_unused]] const ExecContext& ctx) const {
    return {};
  }
};

}  // namespace sparsellm
