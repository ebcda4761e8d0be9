#include <cstddef>
#include <cstdint>

#include "tests/sparse/tca_bme/record_multistage_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

TEST_P(GpuRecordMultistage, ProductsOfAllPatterns) {
  size_t number = 0;
  for (const Shape& shape :
       {Shape{1, 1}, Shape{16, 16}, Shape{64, 64}, Shape{65, 8}, Shape{127, 65}, Shape{256, 768}}) {
    const GuardedTensor x = numbers(33, shape.columns);
    for (Pattern pattern : kPatterns) {
      for (double density : {0.0, 0.001, 0.1, 0.3, 0.5, 1.0}) {
        const OwnedTensor w = weight(shape, density, pattern);
        const DeviceMatrix loaded(tca_bme::encode_records(w.view, LayoutFor::speed, cpu.threads));
        const Expected all = expected_of(x.view(), w.view);
        for (int64_t tokens : {1, 9, 33}) {
          SCOPED_TRACE(fmt::format("[{}, {}], density {}, {}, {} tokens", shape.rows, shape.columns,
                                   density, name_of(pattern), tokens));
          const GuardedTensor y(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
          multiply(loaded.matrix, x.view().rows(0, tokens), y.view(),
                   devices[++number % devices.size()]);
          gpu->cuda.synchronize();
          ASSERT_TRUE(all_close(y.view(), first_rows(all, tokens, shape.rows), kTolerance));
          ASSERT_TRUE(y.guards_intact());
        }
      }
    }
  }
}

}  // namespace
}  // namespace sparsellm
