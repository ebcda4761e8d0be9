#pragma once

#include <cstdint>
#include <map>

#include "kernels/base/cuda_state.cuh"
#include "kernels/base/dtype.h"
#include "kernels/base/token_buckets.h"

namespace sparsellm {

// The plans that tuning has chosen for a format on one device, by what the choice depends on; they
// live as long as its CudaContext.
template <class Key, class Plan>
class TunedPlans {
 public:
  const Plan* find(const Key& key) const {  // nullptr if there is none
    const auto found = plans_.find(key);
    return found == plans_.end() ? nullptr : &found->second;
  }
  void set(const Key& key, const Plan& plan) { plans_.insert_or_assign(key, plan); }

 private:
  std::map<Key, Plan> plans_;
};

template <class Weight>
using TunedPlansOf = TunedPlans<typename Weight::Key, typename Weight::Plan>;

// The one for such products of the weight (sparse/weight_tuning.cuh); nullptr if there is none that
// fits.
template <class Weight>
const typename Weight::Plan* tuned_plan(const Weight& weight, DType y, int64_t tokens,
                                        const ExecContext& ctx) {
  const auto& plans = cuda_state(ctx).op_states.template of<TunedPlansOf<Weight>>();
  const auto* const plan = plans.find(weight.key(y, token_bucket(tokens), ctx.launches));
  return plan != nullptr && weight.fits(*plan, y, tokens) ? plan : nullptr;
}

}  // namespace sparsellm
