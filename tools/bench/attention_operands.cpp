#include "tools/bench/attention_operands.h"

#include <cmath>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/cuda_context.h"
#include "kernels/base/error.h"
#include "kernels/fill_random.h"
#include "tools/bench/requests.h"

namespace sparsellm {
namespace {

// With keys in [-1, 1) the scores then have a standard deviation of 4/3, so that some tokens count
// far more than others: with equal weights a result would hardly depend on the keys.
constexpr float kQuerySpread = 4.0f;

OwnedTensor random_tensor(DType dtype, std::initializer_list<int64_t> sizes, std::string_view name,
                          float spread, uint64_t seed, ExecContext& ctx) {
  OwnedTensor tensor = allocate_tensor(ctx.device, dtype, sizes, name);
  const Tensor flat(tensor.view.raw(), dtype, {tensor.view.element_count()}, ctx.device);
  fill_random({.key = random_key(seed, name), .spread = spread}, flat, ctx);
  if (ctx.cuda != nullptr) {
    ctx.cuda->synchronize();  // copies of it are not ordered with the context
  }
  return tensor;
}

OwnedTensor upload(const std::vector<int32_t>& values, std::initializer_list<int64_t> sizes,
                   std::string_view name, Device device) {
  OwnedTensor tensor = allocate_tensor(device, DType::i32, sizes, name);
  copy_bytes(device, tensor.view.raw(), {}, values.data(), tensor.view.bytes());
  return tensor;
}

// The numbers below `count` in random order (Fisher and Yates).
std::vector<int32_t> permutation(int64_t count, uint64_t seed) {
  std::vector<int32_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  BenchRandom random(seed);
  for (int64_t i = count - 1; i > 0; --i) {
    std::swap(numbers[static_cast<size_t>(i)], numbers[static_cast<size_t>(random.uniform(0, i))]);
  }
  return numbers;
}

}  // namespace

AttentionOperands::AttentionOperands(const AttentionShape& shape, int64_t copies, uint64_t seed,
                                     ExecContext& ctx)
    : shape_(shape), copies_(copies) {
  const Device device = ctx.device;
  const int64_t table_pages = pages_for(shape.context);
  const int64_t table_rows = copies * shape.requests;
  const int64_t pages = table_rows * table_pages;
  const int64_t features = shape.heads * shape.head_dim;
  const auto make_pages = [&](std::string_view name) {
    return random_tensor(shape.dtype, {pages, shape.kv_heads, kPageSize, shape.head_dim}, name,
                         1.0f, seed, ctx);
  };
  k_ = make_pages("the pool of keys");
  v_ = make_pages("the pool of values");
  q_ = random_tensor(shape.dtype, {copies * shape.rows(), features}, "q of attention", kQuerySpread,
                     seed, ctx);
  y_ = allocate_tensor(device, shape.dtype, {copies * shape.rows(), features}, "y of attention");

  // After the pages, whose number fits 32 bits on any device that has the memory for them.
  page_table_ = upload(permutation(pages, random_key(seed, "page table")),
                       {table_rows, table_pages}, "the page table", device);
  const auto rows = static_cast<int32_t>(shape.rows_per_request());
  const auto context = static_cast<int32_t>(shape.context);
  std::vector<int32_t> query_start{0};
  std::vector<int32_t> positions;
  for (int64_t request = 0; request < shape.requests; ++request) {
    query_start.push_back(query_start.back() + rows);
    for (int32_t row = 0; row < rows; ++row) {
      positions.push_back(context - rows + row);
    }
  }
  query_start_ = upload(query_start, {shape.requests + 1}, "the rows of requests", device);
  positions_ = upload(positions, {shape.rows()}, "positions", device);
  kv_length_ = upload(std::vector<int32_t>(static_cast<size_t>(shape.requests), context),
                      {shape.requests}, "the lengths of requests", device);
}

AttentionParams AttentionOperands::params() const {
  return {.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)), .window = shape_.window};
}

PagedBatch AttentionOperands::batch(int64_t copy) const {
  return {.query_start = query_start_.view,
          .kv_length = kv_length_.view,
          .page_table = page_table_.view.rows(copy * shape_.requests, shape_.requests),
          .positions = positions_.view,
          .decode = !shape_.prefill,
          .generated = shape_.prefill ? 0 : shape_.requests};
}

}  // namespace sparsellm
