#pragma once

#include <optional>
#include <string>

#include "kernels/base/device.h"
#include "kernels/base/dtype.h"
#include "kernels/zero_pattern.h"
#include "models/config.h"
#include "models/weights/random_weights.h"
#include "sparse/prune/plan.h"

namespace sparsellm {

// What random weights are for, and what goes before their plan.
struct RandomPlanOptions {
  Device device = {};
  DType dtype = DType::f16;                 // of the weights
  std::optional<ZeroPattern> pattern = {};  // of all layers that have zeros
  // Of all layers; "auto": of those for which the plan says so or names none, as it is: an engine
  // chooses (engine/format_selection.h).
  std::string format = {};
  bool keeps_formats = false;  // that the plan names: `format` is of the other layers
  std::string records = {};    // of all layers, instead of the plan's (sparse/records_choice.h)
};

// All linear layers of a model with random weights by a plan. Zeros are random whatever method is
// to choose them: a fraction `sparsity`, of N:M a fraction 1 - N / M; equally many in each row
// where the scope is the row (ZeroPattern::Kind::rows), anywhere where it is the matrix, by blocks
// anywhere where the plan has blocks. A layer
// has the format of the plan; of layers that are joined by rows and differ, that of the one with
// the most rows, as a converted model has it. For "smallest" it is the one in which the joined
// layer can be expected to take the fewest bytes, for "auto" what rules choose for it, as the
// converter does. Throws Error for a plan with a rule that matches nothing in this model.
RandomLinears plan_random_linears(const SparsityPlan& plan, const ModelConfig& config,
                                  const RandomPlanOptions& options);

}  // namespace sparsellm
