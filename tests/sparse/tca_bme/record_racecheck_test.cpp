#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sparse/tca_bme/cuda/record_encode_cuda.h"
#include "sparse/tca_bme/format/record_parts.h"
#include "tests/sparse/tca_bme/tca_bme_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

TEST_P(GpuTcaBme, ABatchInvariantRowHasTheSameBitsInAnyBatch) {
  exec->sums = Sums::batch_invariant;
  constexpr int64_t kTokens = 70;
  for (double density : {0.5, 0.1}) {
    const Shape shape{700, 520};
    const std::unique_ptr<WeightMatrix> loaded = load(weight(shape, density).view);
    const GuardedTensor x = numbers(600, shape.columns);
    const GuardedTensor alone(GetParam(), {kTokens, shape.rows}, Layout::contiguous, kGpu);
    for (int64_t t = 0; t < kTokens; ++t) {
      loaded->matmul(x.view().rows(t, 1), alone.view().rows(t, 1), {}, *exec);
      // synccheck sets memory aside for each launch in the queue, and would run out of it.
      gpu->cuda.synchronize();
    }
    for (int64_t tokens : {2, 3, 8, 9, 16, 17, 31, 33, 64, 65, 70, 300, 600}) {
      const int64_t begin = tokens < kTokens ? (kTokens - tokens) / 2 : 0;
      const GuardedTensor y(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
      loaded->matmul(x.view().rows(begin, tokens), y.view(), {}, *exec);
      gpu->cuda.synchronize();
      const int64_t count = std::min(tokens, kTokens - begin);
      EXPECT_TRUE(same_bits(y.view().rows(0, count), alone.view().rows(begin, count)))
          << tokens << " tokens, density " << density;
    }
  }
}

TEST_P(GpuTcaBme, EncodesAsTheCpuDoes) {
  for (const Shape& shape : {Shape{1, 1}, Shape{64, 64}, Shape{63, 65}, Shape{600, 130},
                             Shape{1100, 129}, Shape{130, 256}, Shape{65, 40}, Shape{1000, 1000}}) {
    for (Pattern pattern : kPatterns) {
      for (double density : {0.0, 0.001, 0.01, 0.1, 0.14, 0.2, 0.36, 0.5, 1.0}) {
        if (shape.rows >= 1000 && pattern != Pattern::random) {
          continue;
        }
        SCOPED_TRACE(fmt::format("[{}, {}], density {}, {}", shape.rows, shape.columns, density,
                                 name_of(pattern)));
        const OwnedTensor w = weight(shape, density, pattern);
        for (const tca_bme::RecordsFor goal :
             {tca_bme::RecordsFor::speed, tca_bme::RecordsFor::size}) {
          SCOPED_TRACE(name_of(goal));
          const EncodedWeight expected = tca_bme::encode_records(w.view, goal, cpu.threads);
          const tca_bme::RecordParts parts(expected);
          for (Layout layout : {Layout::contiguous, Layout::strided}) {
            const GuardedTensor on_gpu(GetParam(), {shape.rows, shape.columns}, layout, kGpu);
            set_values(on_gpu.view(), values_of(w.view));
            const tca_bme::DeviceRecords made =
                tca_bme::encode_records_cuda(on_gpu.view(), goal, *exec);
            ASSERT_EQ(made.nonzeros, expected.nonzeros);
            ASSERT_TRUE(made.layout == parts.layout);
            const std::vector<std::byte> starts = bytes_of_buffer(made.starts);
            const std::vector<std::byte> records = bytes_of_buffer(made.records);
            const std::span<const std::byte> expected_starts = std::as_bytes(parts.starts);
            ASSERT_TRUE(std::equal(starts.begin(), starts.end(), expected_starts.begin(),
                                   expected_starts.end()));
            ASSERT_TRUE(std::equal(records.begin(), records.end(), parts.records.begin(),
                                   parts.records.end()));
            const tca_bme::RecordSizes sizes = tca_bme::record_sizes(parts.starts, parts.grid);
            ASSERT_EQ(made.sizes.largest, sizes.largest);
            ASSERT_EQ(made.sizes.common, sizes.common);
            ASSERT_EQ(made.sizes.block_starts, sizes.block_starts);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace sparsellm
