#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/cuda_state.cuh"
#include "sparse/tca_bme/record_matmul_cuda.h"

namespace sparsellm::tca_bme {

// How a product is computed: by expanding so many rows at once (sparse/expand_matmul.h), or by
// decoding records in this way.
struct RecordPlan {
  int64_t piece_rows = 0;  // 0: records are decoded
  RecordMatmulConfig config;

  bool expands() const { return piece_rows > 0; }
};

// "expand <rows>" or "decode <configuration>", and back; nothing for other text, and for
// what cannot be chosen for such a product.
std::string to_text(const RecordPlan& plan);
std::optional<RecordPlan> plan_from(std::string_view text, const RecordMatrix& matrix,
                                    int64_t tokens);

// What the choice of a plan depends on.
struct RecordKey {
  int64_t rows = 0;
  int64_t columns = 0;
  int chunks = 0;
  bool pair = false;
  int64_t percent = 0;  // of nonzeros, rounded
  DType dtype = DType::f16;
  DType y = DType::f16;
  int64_t tokens = 0;  // their bucket

  std::string text() const;  // for files
  auto operator<=>(const RecordKey&) const = default;
};

// The plans that tuning has chosen on one device; they live as long as its CudaContext.
class RecordPlans : public OpState {
 public:
  static RecordPlans& of(CudaContext::State& cuda);

  const RecordPlan* find(const RecordKey& key) const;  // nullptr if there is none
  void set(const RecordKey& key, const RecordPlan& plan) { plans_.insert_or_assign(key, plan); }

 private:
  std::map<RecordKey, RecordPlan> plans_;
};

}  // namespace sparsellm::tca_bme
