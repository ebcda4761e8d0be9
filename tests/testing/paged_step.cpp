#include "tests/testing/paged_step.h"

#include <algorithm>

#include "tests/testing/tensor_values.h"

namespace sparsellm::testing {
namespace {

constexpr double kUnusedPage = 1 << 30;

}  // namespace

PagedStep::PagedStep(const std::vector<StepRequest>& requests, Device device) {
  std::vector<int32_t> query_start = {0};
  std::vector<int32_t> kv_length;
  std::vector<int32_t> positions;
  size_t most_pages = 0;
  for (const StepRequest& request : requests) {
    query_start.push_back(static_cast<int32_t>(query_start.back() + request.rows));
    kv_length.push_back(static_cast<int32_t>(request.kv_length));
    for (int64_t i = request.kv_length - request.rows; i < request.kv_length; ++i) {
      positions.push_back(static_cast<int32_t>(i));
    }
    most_pages = std::max(most_pages, request.pages.size());
  }
  const size_t width = most_pages + 2;
  std::vector<double> table;
  for (const StepRequest& request : requests) {
    table.insert(table.end(), request.pages.begin(), request.pages.end());
    table.insert(table.end(), width - request.pages.size(), kUnusedPage);
  }
  memory_.push_back(i32_tensor(query_start, device));
  memory_.push_back(i32_tensor(kv_length, device));
  memory_.push_back(i32_tensor(positions, device));
  memory_.emplace_back(DType::i32,
                       std::initializer_list<int64_t>{static_cast<int64_t>(requests.size()),
                                                      static_cast<int64_t>(width)},
                       Layout::strided, device);
  set_values(memory_[3].view(), table);
  batch_ = {.query_start = memory_[0].view(),
            .kv_length = memory_[1].view(),
            .page_table = memory_[3].view(),
            .positions = memory_[2].view()};
}

PagedBatch PagedStep::decode_batch() const {
  PagedBatch batch = batch_;
  batch.decode = true;
  batch.generated = batch.tokens();
  return batch;
}

}  // namespace sparsellm::testing
