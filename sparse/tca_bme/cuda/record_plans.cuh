#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>

#include "kernels/base/cuda_state.cuh"
#include "kernels/base/dtype.h"
#include "sparse/tca_bme/cuda/record_plan.h"

namespace sparsellm::tca_bme {

// What the choice of a plan depends on.
struct RecordKey {
  int64_t rows = 0;
  int64_t columns = 0;
  int chunks = 0;
  bool pair = false;
  int64_t percent = 0;  // of nonzeros, rounded
  bool uneven = false;  // some records are much larger than the others (RecordSizes)
  DType dtype = DType::f16;
  DType y = DType::f16;
  int64_t tokens = 0;  // their bucket
  Launches launches = Launches::overlapping;

  std::string text() const;  // for files
  auto operator<=>(const RecordKey&) const = default;
};

// The plans that tuning has chosen on one device; they live as long as its CudaContext.
class RecordPlans {
 public:
  const RecordPlan* find(const RecordKey& key) const;  // nullptr if there is none
  void set(const RecordKey& key, const RecordPlan& plan) { plans_.insert_or_assign(key, plan); }

 private:
  std::map<RecordKey, RecordPlan> plans_;
};

}  // namespace sparsellm::tca_bme
