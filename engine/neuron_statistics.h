#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "kernels/base/neuron_observer.h"
#include "kernels/base/workspace.h"
#include "sparse/activation/active_unions.h"
#include "sparse/activation/sign_words.h"
#include "sparse/activation/vote_histogram.h"
#include "sparse/activation/votes.h"

namespace sparsellm {

// What can be known of the neurons of a model that runs with activation sparsity `exact`
// (EngineOptions::neuron_observer): for each layer, how well the votes of SparseInfer's predictor
// separate zero neurons from active ones, and how many neurons several tokens need together. No
// layer predicts anything meanwhile, so the counts of a layer do not depend on earlier layers'
// predictions. Nor do they depend on threads. What several ranks count of their neurons adds up.
class NeuronStatistics : public NeuronObserver {
 public:
  struct Layer {
    VoteHistogram votes;
    ActiveUnions unions = {};
  };

  // alphas: as VoteHistogram takes them.
  NeuronStatistics(int64_t layers, Votes votes,
                   const std::vector<float>& alphas = VoteHistogram::default_alphas());

  bool takes_ranks() const override { return true; }
  void observe(const Neurons& neurons, ExecContext& ctx) override;

  // While no step is computed.
  const std::vector<Layer>& layers() const { return layers_; }

 private:
  Votes votes_;
  std::vector<Layer> layers_;
  std::mutex mutex_;  // held by the rank that counts
  // Of the gates of each layer, by the first neuron, packed when the first tokens arrive.
  std::vector<std::map<int64_t, OwnedSignWords>> signs_;
  Workspace workspace_;
};

}  // namespace sparsellm
