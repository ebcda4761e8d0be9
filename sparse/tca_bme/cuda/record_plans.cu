#include "sparse/tca_bme/cuda/record_plans.cuh"

namespace sparsellm::tca_bme {

std::string RecordKey::text() const {
  return fmt::format("{} x {}, {} chunks of {}, {} %{}, {} to {}, {} tokens{}", rows, columns,
                     chunks, pair ? "pairs" : "single values", percent, uneven ? " uneven" : "",
                     name_of(dtype), name_of(y), tokens,
                     launches == Launches::ordinary ? ", ordinary launches" : "");
}

const RecordPlan* RecordPlans::find(const RecordKey& key) const {
  const auto found = plans_.find(key);
  return found == plans_.end() ? nullptr : &found->second;
}

}  // namespace sparsellm::tca_bme
