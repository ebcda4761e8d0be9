#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "kernels/base/open_directory.h"
#include "models/activation_sparsity.h"

namespace sparsellm {

struct ActivationCalibration {
  std::string text = {};
  int64_t tokens = 0;  // of it, at most
  Votes votes = Votes::weighted;
  double max_loss = 0.005;  // in (0, 1): 0.005 lets the perplexity grow by 0.5 %
  int threads = 0;          // 0: usable_cores()
  // Tokens that are done, and all; called between steps. What it throws ends the calibration.
  std::function<void(int64_t done, int64_t total)> progress = {};
};

// Finds, for a model with relu or fatrelu, how much the predictor of SparseInfer (Shin et al., DATE
// 2025) may skip: `predict` with an alpha for each layer, by which every layer misses the same
// share of its active neurons, the largest one at which the perplexity of the text grows by at most
// max_loss. One pass counts votes (NeuronStatistics); the share is found by bisection, each time
// with a pass that predicts. All passes decode the same pieces of the text, many at once, on the
// CPU. `off` if nothing may be skipped. Throws Error for a model or a text that does not do.
ActivationSparsity calibrate_activation_sparsity(const OpenDirectory& model,
                                                 const ActivationCalibration& calibration);

}  // namespace sparsellm
