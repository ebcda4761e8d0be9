#pragma once

#include <cstdint>
#include <vector>

#include "kernels/activation.h"
#include "kernels/base/buffer.h"
#include "kernels/base/exec.h"
#include "sparse/activation/sign_predictor.h"
#include "tools/bench/mlp_weights.h"
#include "tools/bench/neuron_shares.h"

namespace sparsellm {

// An MLP of random weights for random tokens.
struct MlpCase {
  MlpShape shape;
  DType weights = DType::f16;
  DType activations = DType::f32;  // of x, h and y
  int64_t tokens = 0;
  Votes votes = Votes::weighted;
  NeuronShares shares;
  // Of the alpha that predicts the share: by so much another one is larger, which predicts fewer.
  float alpha_factor = 1.0f;
  uint64_t seed = 0;
};

// What it comes to, for the first tokens of all.
struct MlpShares {
  double predicted = 0.0;  // of the neurons of a token: not computed at all
  double zeros = 0.0;      // these, and those that turn out to be zero
  // Neurons that some token of the batch needs: rows of the first projection, and of the others.
  int64_t first_union = 0;
  int64_t active_union = 0;
};

// The right results on the host, by plain loops in double, and how far from them a result may be.
// Sums in f32 are off by as much as those of ProductReference. Each rounding of gate, up and h to
// the dtype of the activations adds an error of y at random: six times the root of the sum of their
// squares. A gate so close to the threshold that its own error decides may count or not.
class MlpReference {
 public:
  // With the alpha and the threshold of FATReLU for the shares of all tokens together. Throws
  // Error.
  MlpReference(const MlpCase& mlp, ThreadPool& threads);

  const Activation& activation() const { return activation_; }
  // Of the dense MLP, whose products have ReLU for an epilogue, but not FATReLU.
  static Activation dense_activation() { return {.kind = Activation::Kind::relu}; }
  const SignPrediction& prediction() const { return prediction_; }
  MlpShares shares(int64_t tokens) const;

  // On the host, of all tokens.
  const Tensor& x() const { return x_.view; }            // [tokens, hidden]
  const Tensor& active() const { return active_.view; }  // u8 [tokens, neurons]
  const Tensor& h() const { return predicted_.h.view; }  // [tokens, neurons], after prediction

  // The first rows of a result on the host, in units of what is allowed: at most 1 if it is right,
  // infinity for a NaN.
  double active_error(const Tensor& active) const;  // 0 or infinity: the prediction is exact
  double h_error(const Tensor& h) const;
  double y_error(const Tensor& y) const;        // of the whole MLP, after prediction
  double dense_y_error(const Tensor& y) const;  // without it, with the dense activation
  double down_error(const Tensor& y) const;     // of down alone, of the h above

 private:
  struct Hidden {
    OwnedTensor h;               // rounded to the dtype of the activations
    std::vector<double> error;   // how far another right one may be,
    std::vector<double> choice;  // and by how much more where the threshold is in doubt
  };
  // Of y, by element.
  struct Outputs {
    std::vector<double> value;
    std::vector<double> magnitude;  // sum |h||w|
    std::vector<double> variance;   // sum (error * w)^2
    std::vector<double> choice;     // sum choice * |w|
  };
  enum class Tolerance : uint8_t { sums, whole };

  void predict(const MlpCase& mlp, const Tensor& up, ThreadPool& threads);
  Hidden hidden_of(const MlpCase& mlp, const Tensor& gate_values, const Tensor& gate_magnitudes,
                   const Tensor& up_values, const Tensor& up_magnitudes, bool predicted) const;
  Outputs outputs_of(const Hidden& hidden, const Tensor& down, ThreadPool& threads) const;
  double output_error(const Tensor& y, const Outputs& right, Tolerance tolerance) const;

  MlpShape shape_;
  OwnedTensor x_;
  Activation activation_{.kind = Activation::Kind::fatrelu};
  SignPrediction prediction_;
  OwnedTensor active_;
  Hidden predicted_;
  Hidden dense_;
  Outputs outputs_;
  Outputs dense_outputs_;
};

}  // namespace sparsellm
