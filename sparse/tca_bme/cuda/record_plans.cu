#include <memory>

#include "sparse/tca_bme/cuda/record_plans.cuh"

namespace sparsellm::tca_bme {

std::string RecordKey::text() const {
  return fmt::format("{} x {}, {} chunks of {}, {} %{}, {} to {}, {} tokens{}", rows, columns,
                     chunks, pair ? "pairs" : "single values", percent, uneven ? " uneven" : "",
                     name_of(dtype), name_of(y), tokens,
                     launches == Launches::ordinary ? ", ordinary launches" : "");
}

RecordPlans& RecordPlans::of(CudaContext::State& cuda) {
  if (cuda.record_plans == nullptr) {
    cuda.record_plans = std::make_unique<RecordPlans>();
  }
  return static_cast<RecordPlans&>(*cuda.record_plans);
}

const RecordPlan* RecordPlans::find(const RecordKey& key) const {
  const auto found = plans_.find(key);
  return found == plans_.end() ? nullptr : &found->second;
}

}  // namespace sparsellm::tca_bme
