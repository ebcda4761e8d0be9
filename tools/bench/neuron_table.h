#pragma once

#include <cstdint>
#include <vector>

#include "models/neuron_counts.h"
#include "tools/cli/report.h"

namespace sparsellm {

// The table "activation sparsity": what shares of their neurons the MLPs of a model have found to
// be zero for the rows that a batch of requests generated, over its layers.
std::vector<Column> neuron_columns();
// Of what the layers have counted before the batch, and after it.
Row neuron_row(int64_t batch, const std::vector<NeuronCounts>& before,
               const std::vector<NeuronCounts>& after);

}  // namespace sparsellm
