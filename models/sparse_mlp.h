#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/neuron_counters.h"
#include "kernels/base/tune_cache.h"
#include "kernels/tune/tune_meter.h"
#include "models/mlp.h"
#include "sparse/activation/fused_mlp.h"
#include "sparse/activation/row_access.h"
#include "sparse/activation/sign_predictor.h"
#include "sparse/activation/sign_words.h"

namespace sparsellm {

// An MLP with relu or fatrelu that, for rows that are generated, passes over the weights of neurons
// that are zero (SparseInfer, Shin et al., DATE 2025); rows of prompts are multiplied densely, in
// the same pass. Exact: the gate (of a plain MLP: up) is computed in full, and of neurons that it
// leaves zero the other rows are not read. On the CPU results then have the bits of the dense MLP.
// With sign words: neurons that these predict to be zero count as such, and no weights of theirs
// are read. A row's result does not depend on the other rows.
//
// On CUDA more than a few generated rows need most of the weights: above a cut-off, which tune()
// measures, and in a pass with rows of prompts, which need all of them, they are multiplied densely
// too, with neurons that are predicted to be zero taken out, unless sums have to be batch
// invariant. Until it is tuned the cut-off goes by a rule. Exact rows are then no more counted than
// those of prompts; predicted ones are.
class SparseMlp : public Mlp {
 public:
  // Of all neurons of an MLP or of those that a rank has: y of the ranks add up, one of which has
  // the bias of down.
  struct Parts {
    // [neurons, hidden], or of a gated MLP [2 * neurons, hidden]: gate and up joined by rows.
    OwnedTensor up = {};
    OwnedTensor up_bias = {};  // of as many, or empty
    OwnedTensor down = {};     // [neurons, hidden], the transpose of the down projection
    OwnedTensor down_bias = {};
    Activation activation = {};
    bool relu_up = false;  // of a gated MLP with relu: up has a ReLU, too
    // Of the gate, or of a plain MLP's up; null: exact. They may get their values later.
    std::unique_ptr<OwnedSignWords> signs = nullptr;
    SignPrediction prediction = {};
    // The share of neurons that are expected to cost nothing, in [0, 1], where the cut-off is
    // measured.
    double expected_zeros = 0.9;
    // For an observer (kernels/base/neuron_observer.h): the layer that it is of, and the number of
    // the first neuron there.
    int64_t layer = 0;
    int64_t first_neuron = 0;
    bool sums_over_ranks = false;  // as Linear's
  };
  // Throws Error for shapes that do not fit. Parts may be without memory (models/weights), as long
  // as the MLP is not run.
  explicit SparseMlp(Parts parts);

  void forward(const Tensor& x, const PagedBatch& batch, Tensor y, ExecContext& ctx) const override;
  int64_t workspace_bytes(int64_t tokens, DType dtype, Sums sums) const override;
  std::vector<const Linear*> linears() const override { return dense_->linears(); }
  std::vector<const Linear*> partial_linears() const override;
  NeuronCounts neuron_counts() const override;

  // Up to how many generated rows go by neurons, on CUDA.
  int64_t most_rows() const { return most_rows_; }

  // What tune() is given besides the MLPs: rows of x and y have this dtype.
  struct Tuning {
    DType dtype = DType::f16;
    std::span<const int64_t> tokens;  // stand for their buckets (kernels/base/token_buckets.h)
  };
  // Measures the cut-off of MLPs, one for all that are alike, or takes it from the cache: going up
  // through the buckets it is the last one in which rows by neurons take no longer than dense
  // products. x is random here, and would leave half of the neurons active. So each MLP gets an
  // alpha that skips the expected share of zeros; where nothing is predicted, that share of made-up
  // gates is zero, at random places. Takes device memory for a while and synchronises. Returns how
  // many choices it measured.
  static int64_t tune(std::span<SparseMlp* const> mlps, const Tuning& what, TuneMeter& meter,
                      TuneCache& cache, ExecContext& ctx);

 private:
  class CutOff;

  bool gated() const { return parts_.up.view.size(0) != neurons(); }
  int64_t neurons() const { return parts_.down.view.size(0); }
  // positions: -1 is padding.
  void forward_generated(const Tensor& x, const Tensor& positions, Tensor y,
                         ExecContext& ctx) const;
  // The first rows are generated, as many as there are positions.
  void forward_densely(const Tensor& x, const Tensor& positions, Tensor y, ExecContext& ctx) const;
  // Of an MLP with sign words.
  struct Prediction {
    SignPrediction by;
    NeuronCounters* counters = nullptr;
  };
  Prediction prediction() const { return {.by = parts_.prediction, .counters = counters()}; }
  // Row by row, and densely; without positions all rows are generated.
  void forward_predicted(const Tensor& x, const Tensor& positions, const Prediction& how, Tensor y,
                         ExecContext& ctx) const;
  void forward_masked(const Tensor& x, const Tensor& positions, const Prediction& how, Tensor y,
                      ExecContext& ctx) const;
  void forward_exact(const Tensor& x, const Tensor& positions, Tensor y, ExecContext& ctx) const;
  // What remains of an exact MLP when its gates are there, [tokens, neurons]: before the
  // activation, or of a plain MLP h itself. h may be gates, and is scratch.
  void forward_gates(const Tensor& x, const Tensor& gates, const NeuronTally& tally, Tensor h,
                     Tensor y, ExecContext& ctx) const;
  // By one launch; false, and nothing is done, if no such kernel takes the MLP.
  bool forward_fused(const Tensor& x, const Tensor& positions, const Prediction& how, Tensor y,
                     ExecContext& ctx) const;
  FusedMlp fused(const Prediction& how) const;
  void predict(const Tensor& x, const SignPrediction& by, Tensor active, ExecContext& ctx) const;
  // h [tokens, neurons]: what down multiplies by.
  void compute_active(const Tensor& x, const Tensor& active, Tensor h, ExecContext& ctx) const;
  NeuronCounters* counters() const { return static_cast<NeuronCounters*>(counters_.data()); }

  Parts parts_;
  // The rule: where nine of ten neurons are zero, four rows together need a third of them. For more
  // rows dense products are faster; without a prediction, which reads all gates anyway, already for
  // two.
  int64_t most_rows_ = 0;
  std::unique_ptr<Mlp> dense_;  // of the same weights; all below are views
  Linear gate_;                 // of a plain MLP: up, with the activation
  std::unique_ptr<RowAccess> gate_rows_;
  std::unique_ptr<RowAccess> up_rows_;  // of a plain MLP the same as gate_rows_
  Tensor gate_bias_;
  Tensor up_bias_;
  std::unique_ptr<RowAccess> down_rows_;
  Buffer counters_;  // NeuronCounters
};

}  // namespace sparsellm
