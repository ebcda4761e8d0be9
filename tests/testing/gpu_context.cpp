#include "tests/testing/gpu_context.h"

namespace sparsellm::testing {

GuardedTensor cpu_twin(const Tensor& x) {
  const std::vector<double> values = values_of(x);
  if (x.rank() == 1) {
    GuardedTensor twin(DType::f32, {x.size(0)});
    set_values(twin.view(), values);
    return twin;
  }
  if (x.rank() == 4) {
    GuardedTensor twin(DType::f32, {x.size(0), x.size(1), x.size(2), x.size(3)});
    set_values(twin.view(), values);
    return twin;
  }
  GuardedTensor twin(DType::f32, {x.size(0), x.size(1)});
  set_values(twin.view(), values);
  return twin;
}

}  // namespace sparsellm::testing
