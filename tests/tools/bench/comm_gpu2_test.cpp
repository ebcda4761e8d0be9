// The benchmark of sums over two GPUs, on small sizes.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tools/bench/comm.h"

namespace sparsellm {
namespace {

TEST(BenchCommGpu2, EveryWayIsMeasuredOrSaysWhyNot) {
  if (cuda_device_count() < 2) {
    GTEST_SKIP() << "2 ranks need 2 GPUs, there is " << cuda_device_count();
  }
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
    const CommBenchOptions options{.devices = {{Device::Kind::cuda, 0}, {Device::Kind::cuda, 1}},
                                   .bytes = {4, 14336, 1 << 20},
                                   .dtype = dtype,
                                   .calls = 7,
                                   .repeat = 3};
    std::vector<CommResult> results;
    bench_comm(options, [&](const CommResult& result) { results.push_back(result); });
    EXPECT_EQ(results.size(), 3 * all_comm_ways().size());
    for (const CommResult& result : results) {
      EXPECT_EQ(result.measured, result.note.empty()) << result.way;
      EXPECT_TRUE(result.measured || result.way == "nccl") << result.note;
      if (result.measured) {
        EXPECT_GT(result.us.min, 0.0);
        EXPECT_EQ(result.way == "chosen" || result.way == result.taken, true) << result.taken;
      }
    }
  }
}

}  // namespace
}  // namespace sparsellm
