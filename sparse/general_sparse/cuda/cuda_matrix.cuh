#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "sparse/general_sparse/cuda/device_encoding.h"
#include "sparse/general_sparse/cuda/plan_product_cuda.h"
#include "sparse/general_sparse/cuda/row_weight.h"
#include "sparse/general_sparse/general_matrix.h"

namespace sparsellm::general_sparse {

// How a product is computed: by the program's kernels, or by a generated one.
using MatrixPlan = std::variant<RowConfig, KernelPlan>;

// "rows <configuration>", "plan <fields>" (plan.h), and back: nothing for other text.
std::string matrix_plan_text(const MatrixPlan& plan);
std::optional<MatrixPlan> matrix_plan_from(std::string_view text, const RowWeight& weight,
                                           int64_t n);

// The parts of an encoding that stay on the host.
struct HostRows {
  std::vector<uint32_t> starts;
  std::vector<uint16_t> row_order;  // empty if not sorted
  uint64_t fingerprint = 0;         // of which elements are not zero
};

// Operands of a product, checked.
struct MatrixOperands {
  const Tensor& b;
  const Tensor& c;
  Order order = Order::rows;
};

class CudaMatrix : public Matrix {
 public:
  CudaMatrix(DeviceEncoding encoding, std::shared_ptr<const HostRows> host);

  int64_t rows() const override { return encoding_.rows; }
  int64_t columns() const override { return encoding_.columns; }
  DType dtype() const override { return encoding_.dtype; }
  int64_t nonzeros() const override { return encoding_.nonzeros; }
  int64_t bytes() const override { return encoding_.bytes(); }
  void multiply(const Tensor& b, Tensor c, Order order, ExecContext& ctx) const override;
  int64_t workspace_bytes(int64_t n, Order order) const override;
  void tune(const MatrixTuning& what, TuneCache& cache, ExecContext& ctx) override;
  std::unique_ptr<Matrix> copy() const override;
  std::string plan_text(int64_t n, Order order) const override;

  const DeviceEncoding& encoding() const { return encoding_; }
  const HostRows& host() const { return *host_; }
  const RowWeight& weight() const { return weight_; }
  PlanMatrix plan_matrix() const;

  // multiply() of more than none, in one of these ways.
  void run(const RowConfig& config, const MatrixOperands& operands, ExecContext& ctx) const;
  void run(const PlanProduct& product, const MatrixOperands& operands, ExecContext& ctx) const;
  int64_t run_workspace_bytes(int64_t n, Order order) const;
  int64_t run_workspace_bytes(const PlanProduct& product, int64_t n, Order order) const;

 private:
  using Choice = std::variant<RowConfig, PlanProduct>;
  using ChoiceKey = std::pair<int64_t, Order>;  // bucket of columns

  Choice choice_of(const MatrixPlan& plan, const MatrixTuning& what, ExecContext& ctx) const;
  const Choice* choice(int64_t n, Order order) const;

  DeviceEncoding encoding_;
  RowWeight weight_;  // of that
  std::shared_ptr<const HostRows> host_;
  std::map<ChoiceKey, Choice> choices_;  // that were measured
};

}  // namespace sparsellm::general_sparse
