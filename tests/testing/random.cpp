#include "tests/testing/random.h"

#include <numeric>
#include <utility>

#include "tests/testing/tensor_values.h"

namespace sparsellm::testing {

int64_t Random::below(int64_t count) {
  return static_cast<int64_t>(engine_() % static_cast<uint64_t>(count));
}

double Random::uniform(double low, double high) {
  return low + (high - low) * static_cast<double>(engine_() >> 11) * 0x1p-53;
}

std::vector<int32_t> Random::permutation(int32_t count) {
  std::vector<int32_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  for (int32_t i = count - 1; i > 0; --i) {
    std::swap(numbers[static_cast<size_t>(i)], numbers[static_cast<size_t>(below(i + 1))]);
  }
  return numbers;
}

void Random::fill(const Tensor& x, double low, double high) {
  std::vector<double> values(static_cast<size_t>(x.element_count()));
  for (double& value : values) {
    value = uniform(low, high);
  }
  set_values(x, values);
}

GuardedTensor Random::tensor(DType dtype, std::initializer_list<int64_t> sizes, Layout layout,
                             double low, double high, Device device) {
  GuardedTensor x(dtype, sizes, layout, device);
  fill(x.view(), low, high);
  return x;
}

}  // namespace sparsellm::testing
