#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "kernels/activation.h"
#include "kernels/gemm.h"
#include "tests/testing/gpu_context.h"
#include "tests/testing/random.h"

namespace sparsellm::testing {

// The dense product on CUDA against its CPU twin. Weights are given as stored.
class Gemm : public GpuTest {
 protected:
  explicit Gemm(WeightOrder w_order = WeightOrder::out_in) : order(w_order) {}

  using Kind = Activation::Kind;

  static constexpr Activation kActivations[] = {
      {Kind::none, 0.0f},      {Kind::relu, 0.0f}, {Kind::gelu, 0.0f},
      {Kind::gelu_tanh, 0.0f}, {Kind::silu, 0.0f}, {Kind::fatrelu, 0.25f},
  };
  static bool is_fused(const Activation& activation);

  GuardedTensor on_gpu(std::initializer_list<int64_t> sizes, Layout layout = Layout::contiguous);

  GuardedTensor weight_on_gpu(int64_t out, int64_t in, Layout layout = Layout::contiguous);

  // Aligned as the memory of a buffer is.
  OwnedTensor bias_on_gpu(int64_t size);

  // gemm() or gemm_transposed().
  void multiply(const Tensor& x, const Tensor& w, const Epilogue& epilogue, const Tensor& y,
                ExecContext& ctx) const;

  // `y` is the product within the errors of sums in f32 (of terms of at most 1) and of one
  // rounding; of two where the activation is applied to a rounded sum.
  void expect_right(const Tensor& x, const Tensor& w, const Epilogue& epilogue,
                    const GuardedTensor& y);
  void run_and_expect_right(const Tensor& x, const Tensor& w, const Epilogue& epilogue,
                            const GuardedTensor& y);

  // Every row of x [tokens, in] alone, and all numbers of rows at changing places.
  void expect_invariant(const Tensor& x, const Tensor& w, const Epilogue& epilogue, DType y_dtype);

  // What either order of a weight is tested for.

  // Products of all these sizes, with several strides, activations, biases and dtypes.
  struct Sizes {
    std::vector<int64_t> tokens;
    std::vector<int64_t> in;
    std::vector<int64_t> out;
  };
  void expect_right_for(const Sizes& sizes);
  // Of these numbers of tokens plans are chosen, `buckets` of them, and products of several others
  // are right; y has one of the dtypes (f32 without a bias alone).
  struct Tuned {
    std::vector<int64_t> tokens;
    int64_t buckets = 0;
    std::vector<DType> y_dtypes;
  };
  void expect_right_when_tuned(const Tuned& tuned);
  // Under Sums::batch_invariant, which it sets.
  void expect_rows_invariant();

  const WeightOrder order;
  Random random{78};

 private:
  // The sums with the bias, in f32 on the CPU.
  GuardedTensor sums_of(const Tensor& x, const Tensor& w, const Tensor& bias, int64_t out);
};

// The same by weights that are stored as their transposes.
class TransposedGemm : public Gemm {
 protected:
  TransposedGemm() : Gemm(WeightOrder::in_out) {}
};

}  // namespace sparsellm::testing
