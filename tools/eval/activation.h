#pragma once

#include <string>
#include <vector>

#include "engine/neuron_statistics.h"
#include "kernels/base/json_writer.h"

namespace sparsellm {

// What sparsellm-eval activation says of a model's neurons, layer by layer and of all layers: the
// share that is zero; what the predictor would skip at each alpha, and with which precision and
// recall (VoteHistogram); the share that is active for at least one of 1 to 32 tokens of different
// windows. As tables, and as members of a JSON object that is open.
std::string neuron_tables(const NeuronStatistics& statistics);
void add_neurons(const NeuronStatistics& statistics, JsonWriter& json);

}  // namespace sparsellm
