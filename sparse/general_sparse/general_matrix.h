#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"
#include "sparse/matrices/compressed_rows.h"

namespace sparsellm {
class KernelCache;  // kernels/base/kernel_cache.h
class TuneCache;    // kernels/base/tune_cache.h
}  // namespace sparsellm

namespace sparsellm::general_sparse {

class CostModel;    // search/cost_model.h
struct RankedPlan;  // search/plan_search.h

// How the elements of the dense matrices of C = A * B lie.
enum class Order : uint8_t {
  rows,     // tensors [K, N] and [M, N]
  columns,  // tensors [N, K] and [N, M], as a linear layer has x and y
};

// A way to compute a product that tune() has measured.
struct PlanTrial {
  int64_t n = 0;  // columns of B
  Order order = Order::rows;
  std::string plan = {};                  // as plan_text() has it
  const RankedPlan* generated = nullptr;  // null: kernels of the program
  double seconds = 0.0;
};

// Products that tune() is for.
struct MatrixTuning {
  std::vector<int64_t> columns = {};  // of B: choices are made for buckets of them (token_bucket)
  std::vector<Order> orders{Order::rows};
  // Compiles generated kernels, and keeps their code; null: these are not tried. Needed by tune()
  // alone.
  KernelCache* kernels = nullptr;
  // Which of them are tried: the fastest by this model.
  const CostModel* model = nullptr;  // null: the one that is compiled in
  int64_t most_plans = 40;
  // Takes the plans of the search space, the model's first before the others, and returns those
  // that are tried in place of these, however slow they are.
  std::function<std::vector<RankedPlan>(const std::vector<RankedPlan>&)> choose = {};
  bool program_kernels = true;  // whether those of the program are tried
  std::function<void(const PlanTrial&)> on_trial = {};
};

// A sparse matrix A [M, K] of f16, bf16 or f32 on a device, for products of any field: what
// WeightMatrix is to the linear layers of a model. Only tune() changes it.
class Matrix {
 public:
  virtual ~Matrix() = default;

  virtual int64_t rows() const = 0;     // M
  virtual int64_t columns() const = 0;  // K
  virtual DType dtype() const = 0;
  virtual int64_t nonzeros() const = 0;
  virtual int64_t bytes() const = 0;  // that a product reads of A

  // C = A * B, both of the dtype of A on its device (on the CPU f32, whatever A is); sums are in
  // f32. Rows of the tensors may be strided, elements of a row are side by side. c must not overlap
  // b. The same bits in every run. Throws Error for operands that do not fit.
  virtual void multiply(const Tensor& b, Tensor c, Order order, ExecContext& ctx) const = 0;
  // What multiply() of this many columns of B takes from the workspace.
  virtual int64_t workspace_bytes(int64_t n, Order order) const = 0;

  // Measures how such products are computed fastest, which multiply() does from then on, or finds
  // it in the cache, with the shape and content of the matrix. On a CUDA device these are kernels
  // of the program in some configurations, and generated ones (plan.h); on the CPU there is no
  // choice. Takes memory for B, C and the work arrays of the generated kernels; saving the cache is
  // the caller's. Before any workspace_bytes() that counts, and not while multiply() runs.
  virtual void tune(const MatrixTuning& what, TuneCache& cache, ExecContext& ctx) = 0;

  // For measurements and their reports: the same matrix in memory of its own, and how multiply()
  // computes such a product.
  virtual std::unique_ptr<Matrix> copy() const = 0;
  virtual std::string plan_text(int64_t n, Order order) const = 0;
};

// On the CPU, or a CUDA device, which has the matrix on return. m is valid. `layout` is the text of
// the layout (format/layout.h) that a CUDA device has it in, and may be hostile; empty: that of
// choose_row_layout(). The CPU multiplies by compressed rows, whatever it says. Throws Error for a
// matrix that the format does not hold, for a layout that CUDA devices do not multiply such a
// matrix by, and for CUDA in a CPU-only build.
std::unique_ptr<Matrix> load_matrix(const CompressedRows& m, const Device& device,
                                    ThreadPool& threads, std::string_view layout = {});

}  // namespace sparsellm::general_sparse
