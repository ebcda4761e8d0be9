#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention.h"
#include "kernels/paged_kv.h"
#include "tests/testing/compare.h"
#include "tests/testing/guarded_tensor.h"
#include "tests/testing/paged_step.h"
#include "tests/testing/random.h"

// Attention on the CPU by naive loops in double, and the pages of its operands.
namespace sparsellm::testing {

// A request's keys and values in plain rows, and its pages.
struct Sequence {
  GuardedTensor k;  // [length, kv_heads * head_dim]
  GuardedTensor v;
  std::vector<int32_t> pages;

  int64_t length() const { return k.view().size(0); }
  // Pages that no row reaches by the window have numbers that are out of range.
  StepRequest request(int64_t kv_length, int64_t rows, int64_t window = 0) const;
};

// The first token that the first of a request's last `rows` rows sees.
int64_t first_seen(int64_t kv_length, int64_t rows, int64_t window);

// A pool of pages with sequences in it, in pages taken in random order; what no token uses is NaN.
class SequencePool {
 public:
  SequencePool(int64_t pages, int64_t kv_heads, int64_t head_dim, Random& random);

  KvLayer layer() const { return {.k = k_.view(), .v = v_.view()}; }

  Sequence add(int64_t length);
  Sequence add(GuardedTensor k, GuardedTensor v);
  // The pages' tokens before this one become NaN.
  void poison(const Sequence& sequence, int64_t first_token);

 private:
  Random& random_;
  GuardedTensor k_;
  GuardedTensor v_;
  std::vector<int32_t> free_;
};

// One row at `position`: softmax over all scores at once. An error of a score s by a part epsilon
// of sum |q||k| changes its weight by that part.
void append_row(const float* q, int64_t heads, const Sequence& sequence, int64_t kv_heads,
                int64_t position, const AttentionParams& params, Expected& expected);

}  // namespace sparsellm::testing
