#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/activation.h"
#include "sparse/activation/votes.h"

namespace sparsellm {

class JsonValue;     // kernels/base/json_reader.h
struct ModelConfig;  // models/config.h

// How the MLPs of a model skip neurons that are zero for a token that comes after its prompt
// (SparseInfer, Shin et al., DATE 2025). Only relu and fatrelu have such neurons.
struct ActivationSparsity {
  enum class Mode : uint8_t {
    off,
    exact,    // neurons whose gate (of a plain MLP: whose sum) is zero; nothing is lost
    predict,  // also those that the signs of the gate's weights say are zero
  };
  Mode mode = Mode::off;
  Votes votes = Votes::weighted;  // of predict
  // Of predict: of each layer, finite and above 0; absent: in this layer nothing is predicted, it
  // is computed as in `exact`. At least one layer has one.
  std::vector<std::optional<float>> alphas = {};
  // Of each layer, for benchmarks: its MLP has FATReLU with this threshold in place of the model's
  // activation. Empty: it has that. Never stored.
  std::vector<float> thresholds = {};
  // Measured by calibration; absent if the model was not calibrated.
  std::optional<float> skipped = {};          // share of the neurons, in [0, 1]
  std::optional<float> perplexity_loss = {};  // relative to off: 0.004 is 0.4 % more

  friend bool operator==(const ActivationSparsity&, const ActivationSparsity&) = default;
};
std::string_view name_of(ActivationSparsity::Mode mode);
std::string_view name_of(Votes votes);

// The member of config.json that stores it:
//   {"version": 1, "activation_sparsity": "exact"}
//   {"version": 1, "activation_sparsity": "predict", "votes": "weighted", "alphas": [1.01, ...],
//    "skipped": 0.43, "perplexity_loss": 0.004}
// A layer in which nothing is predicted has null among the alphas.
inline constexpr std::string_view kActivationSparsityMember = "sparsellm";

// An absent value is `off`. Throws Error that names the key: for another version, mode or key, a
// number of alphas that is not that of the layers or that are all null, an activation without
// zeros.
ActivationSparsity read_activation_sparsity(const JsonValue& value, int64_t layers,
                                            const Activation& activation);
std::string to_json(const ActivationSparsity& sparsity);  // on one line

// What a user requests, in place of the stored values.
struct ActivationSparsityRequest {
  struct Alpha {
    float value = 1.0f;
    std::optional<int64_t> layers = {};  // the first ones, the others have 1; absent: all
  };
  std::optional<ActivationSparsity::Mode> mode = {};
  std::optional<Votes> votes = {};
  std::optional<Alpha> alpha = {};
  // As ActivationSparsity::alphas, in place of `alpha`; calibration and benchmarks set them.
  std::vector<std::optional<float>> alphas = {};
  std::vector<float> thresholds = {};  // as ActivationSparsity's
};

// What the model runs with. Throws Error for an activation without zeros, for `predict` without
// alphas, for votes or an alpha with another mode, and for an alpha of more layers than there are.
// Stored alphas belong to the stored votes: others need an alpha of their own.
ActivationSparsity activation_sparsity_for(const ModelConfig& config,
                                           const ActivationSparsityRequest& request);

// "predict by weighted votes, alpha 0.99 to 1.03; when calibrated, 43.0 % of the neurons were
// skipped and the perplexity changed by +0.40 %", for a log.
std::string describe(const ActivationSparsity& sparsity);

}  // namespace sparsellm
