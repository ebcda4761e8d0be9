#pragma once

#include <cstdint>
#include <initializer_list>
#include <random>
#include <vector>

#include "kernels/base/tensor.h"
#include "tests/testing/guarded_tensor.h"

namespace sparsellm::testing {

// Random numbers that are the same with every compiler and library.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  int64_t below(int64_t count);  // in [0, count)
  double uniform(double low, double high);
  std::vector<int32_t> permutation(int32_t count);  // of 0, 1, ..., count - 1

  void fill(const Tensor& x, double low = -1.0, double high = 1.0);  // i32: whole numbers
  GuardedTensor tensor(DType dtype, std::initializer_list<int64_t> sizes,
                       Layout layout = Layout::contiguous, double low = -1.0, double high = 1.0,
                       Device device = {});

 private:
  std::mt19937_64 engine_;
};

}  // namespace sparsellm::testing
