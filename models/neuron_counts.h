#pragma once

#include <cstdint>

namespace sparsellm {

// What MLPs with activation sparsity have found about generated rows; of others all are 0.
struct NeuronCounts {
  int64_t rows = 0;     // of tokens, in each layer
  int64_t neurons = 0;  // of all these rows
  int64_t skipped = 0;  // of these: predicted to be zero
  int64_t active = 0;   // of these: not zero

  NeuronCounts& operator+=(const NeuronCounts& more) {
    rows += more.rows;
    neurons += more.neurons;
    skipped += more.skipped;
    active += more.active;
    return *this;
  }
  NeuronCounts& operator-=(const NeuronCounts& less) {
    return *this += {-less.rows, -less.neurons, -less.skipped, -less.active};
  }

  double skipped_share() const { return share(skipped); }
  double active_share() const { return share(active); }

 private:
  double share(int64_t part) const {
    return neurons > 0 ? static_cast<double>(part) / static_cast<double>(neurons) : 0.0;
  }
};

}  // namespace sparsellm
