#include "kernels/norm.h"
#include "tests/kernels/ops_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

INSTANTIATE_TEST_SUITE_P(Gpu, Ops, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(Ops, Norms) {
  for (int64_t tokens : kTokens) {
    for (int64_t features : {8, 33, 64, 257, 1000, 5120, 9000, 30000}) {
      if (tokens * features > 160'000) {  // the host's part takes seconds under a sanitizer
        continue;
      }
      for (bool centred : {false, true}) {
        const GuardedTensor x = random_f32({tokens, features}, -2.0, 3.0);
        const GuardedTensor weight = random_tensor({features});
        const GuardedTensor bias = random_tensor({features});
        const GuardedTensor y = empty_tensor({tokens, features});
        const GuardedTensor x_twin = cpu_twin(x.view());
        const GuardedTensor y_twin(DType::f32, {tokens, features});
        const GuardedTensor w_twin = cpu_twin(weight.view());
        if (centred) {
          layer_norm(
              x_twin.view(),
              {.weight = w_twin.view(), .bias = cpu_twin(bias.view()).view(), .epsilon = 1e-5f},
              y_twin.view(), cpu.exec);
          layer_norm(x.view(), {.weight = weight.view(), .bias = bias.view(), .epsilon = 1e-5f},
                     y.view(), gpu->exec);
        } else {
          rms_norm(x_twin.view(), {.weight = w_twin.view(), .bias = {}, .epsilon = 1e-5f},
                   y_twin.view(), cpu.exec);
          rms_norm(x.view(), {.weight = weight.view(), .bias = {}, .epsilon = 1e-5f}, y.view(),
                   gpu->exec);
        }
        expect_twin(y, y_twin.view(), 2.0);
        expect_twin(x, x_twin.view(), 0.0, 0.0);
      }
    }
  }
}

TEST_P(Ops, AddNorms) {
  for (int64_t tokens : kTokens) {
    for (int64_t features : kFeatures) {
      for (bool centred : {false, true}) {
        const GuardedTensor delta = random_tensor({tokens, features});
        const GuardedTensor x = random_f32({tokens, features}, -2.0, 3.0);
        const GuardedTensor weight = random_tensor({features});
        const GuardedTensor bias = random_tensor({features});
        const GuardedTensor y = empty_tensor({tokens, features});
        const GuardedTensor delta_twin = cpu_twin(delta.view());
        const GuardedTensor x_twin = cpu_twin(x.view());
        const GuardedTensor x_before = cpu_twin(x.view());
        const GuardedTensor y_twin(DType::f32, {tokens, features});
        const GuardedTensor w_twin = cpu_twin(weight.view());
        const GuardedTensor b_twin = cpu_twin(bias.view());
        NormParams params{.weight = weight.view(), .bias = {}, .epsilon = 1e-5f};
        if (tokens > 3) {
          params.scale = 0.3f;
          params.delta_scale = 0.7f;
        }
        NormParams twins = params;
        twins.weight = w_twin.view();
        if (centred) {
          params.bias = bias.view();
          twins.bias = b_twin.view();
        }
        const auto add_norm = centred ? add_layer_norm : add_rms_norm;
        add_norm(delta_twin.view(), x_twin.view(), twins, y_twin.view(), cpu.exec);
        add_norm(delta.view(), x.view(), params, y.view(), gpu->exec);
        expect_twin(x, x_twin.view(), 0.0, 0.0);
        expect_twin(y, y_twin.view(), 2.0);
        // In the place of what is added.
        set_values(x.view(), values_of(x_before.view()));
        add_norm(delta.view(), x.view(), params, delta.view(), gpu->exec);
        gpu->cuda.synchronize();
        EXPECT_TRUE(same_bits(delta.view(), y.view()));
        expect_twin(x, x_twin.view(), 0.0, 0.0);
      }
    }
  }
}

}  // namespace
}  // namespace sparsellm
