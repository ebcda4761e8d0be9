#pragma once

#include <cstdint>
#include <vector>

#include "kernels/paged_kv.h"
#include "tests/testing/guarded_tensor.h"

namespace sparsellm::testing {

// A request's part of a step: its last `rows` tokens of `kv_length`.
struct StepRequest {
  std::vector<int32_t> pages;  // all that kv_length needs
  int64_t kv_length = 0;
  int64_t rows = 0;
};

// The tables of a step. Entries of the page table that no op may use are out of range.
class PagedStep {
 public:
  explicit PagedStep(const std::vector<StepRequest>& requests, Device device = {});

  const PagedBatch& batch() const { return batch_; }
  PagedBatch decode_batch() const;  // where each request has one row

 private:
  std::vector<GuardedTensor> memory_;
  PagedBatch batch_;
};

}  // namespace sparsellm::testing
