#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "kernels/gemm_plan.cuh"

namespace sparsellm {

// What the choice of an algorithm depends on. A choice that holds for several numbers of tokens
// stands under one of them, and under row strides of 0 if it holds for any.
struct GemmKey {
  int64_t out = 0;
  int64_t in = 0;
  WeightOrder order = WeightOrder::out_in;
  int64_t tokens = 0;
  int64_t w_stride = 0;
  int64_t x_stride = 0;
  int64_t y_stride = 0;
  DType x = DType::f16;  // and w's
  DType y = DType::f16;
  bool has_bias = false;
  bool relu = false;
  int16_t w_alignment = 0;
  int16_t x_alignment = 0;
  int16_t y_alignment = 0;
  Launches launches = Launches::overlapping;

  static GemmKey exact(const GemmOperands& operands, Launches launches);
  static GemmKey any_stride(const GemmOperands& operands, int64_t tokens, Launches launches);
  // For any number of tokens and kind of launches.
  static GemmKey batch_invariant(const GemmOperands& operands);

  std::string text() const;  // without what is 0 for any; for messages and files
  bool operator==(const GemmKey&) const = default;
};

// The algorithms of one device's products; they live as long as its CudaContext.
class GemmPlans {
 public:
  // The algorithm for these operands. Under Sums::fastest it is found in a map but for the first
  // time: then it is the tuned one of the bucket, if that can run, or cuBLASLt's first guess. Under
  // Sums::batch_invariant it is what gemm() says.
  GemmPlan plan_for(const GemmOperands& operands, ExecContext& ctx);

  // What tuning found: for these launches and the bucket of the tokens of `operands`, and for any.
  void set_tuned(const GemmOperands& operands, Launches launches, const GemmPlan& plan);
  void set_invariant(const GemmOperands& operands, const GemmPlan& plan);

 private:
  struct Hash {
    size_t operator()(const GemmKey& key) const;
  };
  using Map = std::unordered_map<GemmKey, GemmPlan, Hash>;

  GemmPlan fastest_plan(const GemmOperands& operands, const ExecContext& ctx) const;

  Map used_;       // by exact shape
  Map tuned_;      // by bucket, for any strides
  Map invariant_;  // for any number of tokens, and any strides
};

}  // namespace sparsellm
