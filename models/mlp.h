#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/exec.h"
#include "kernels/paged_kv.h"
#include "models/neuron_counts.h"
#include "models/weights/linear.h"

namespace sparsellm {

// The feed-forward block of a layer.
class Mlp {
 public:
  virtual ~Mlp() = default;
  // x, y [tokens, hidden]; y may be x. The batch says which rows are generated and which padding.
  virtual void forward(const Tensor& x, const PagedBatch& batch, Tensor y,
                       ExecContext& ctx) const = 0;
  virtual int64_t workspace_bytes(int64_t tokens, DType dtype, Sums sums) const = 0;
  virtual std::vector<const Linear*> linears() const = 0;
  // Products by parts of the weights of linears(), whose kernels are chosen like theirs.
  virtual std::vector<const Linear*> partial_linears() const { return {}; }
  virtual NeuronCounts neuron_counts() const { return {}; }  // since the MLP was made
};

// Of a rank that has none of the neurons: y is what those of other ranks add up to.
class EmptyMlp : public Mlp {
 public:
  explicit EmptyMlp(Linear down);  // [hidden, 0]
  void forward(const Tensor& x, const PagedBatch& batch, Tensor y, ExecContext& ctx) const override;
  int64_t workspace_bytes(int64_t, DType, Sums) const override { return 0; }
  std::vector<const Linear*> linears() const override { return {}; }

 private:
  Linear down_;
};

// y = down(up(x)), the activation being part of up (OPT's fc1 and fc2).
class PlainMlp : public Mlp {
 public:
  PlainMlp(Linear up, Linear down);
  void forward(const Tensor& x, const PagedBatch& batch, Tensor y, ExecContext& ctx) const override;
  int64_t workspace_bytes(int64_t tokens, DType dtype, Sums sums) const override;
  std::vector<const Linear*> linears() const override { return {&up_, &down_}; }

 private:
  Linear up_;    // [intermediate, hidden]
  Linear down_;  // [hidden, intermediate]
};

// y = down(activation(gate(x)) * up(x)) (Llama).
class GatedMlp : public Mlp {
 public:
  GatedMlp(Linear gate_up, Activation activation, Linear down);
  void forward(const Tensor& x, const PagedBatch& batch, Tensor y, ExecContext& ctx) const override;
  int64_t workspace_bytes(int64_t tokens, DType dtype, Sums sums) const override;
  std::vector<const Linear*> linears() const override { return {&gate_up_, &down_}; }

 private:
  Linear gate_up_;  // [2 * intermediate, hidden]: gate and up joined by rows
  Activation activation_;
  Linear down_;  // [hidden, intermediate]
};

}  // namespace sparsellm
