// Models of which one block has full records and the other has none, loaded with a cache of kernel
// choices that is empty, their own, or that of another model of the same shapes.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/random_models.h"
#include "tests/testing/gpu_context.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

// A percentage of zeros.
class GpuUnevenModels : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) {
      GTEST_SKIP() << "there is no CUDA device";
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Gpu, GpuUnevenModels, ::testing::Values(50, 60, 68, 70, 80),
                         [](const auto& test) { return std::to_string(test.param); });

TEST_P(GpuUnevenModels, LoadWithAnyCache) {
  constexpr BlockZeros kEven = BlockZeros::even;
  constexpr BlockZeros kDense = BlockZeros::dense_block;
  constexpr std::array<BlockZeros, 2> kModels[] = {
      {kEven, kEven}, {kEven, kDense}, {kDense, kEven}};
  const TempDir folder;
  const auto cache_of = [&](size_t i) { return folder.path() / fmt::format("{}.json", i); };
  std::vector<RandomCheckpoint> checkpoints;
  for (const std::array<BlockZeros, 2>& zeros : kModels) {
    checkpoints.emplace_back(folder.path() / std::to_string(checkpoints.size()),
                             RandomModel{.hidden = 256,
                                         .intermediate = 14336,
                                         .sparsity = 0.01 * GetParam(),
                                         .zeros = zeros,
                                         .format = "tca_bme",
                                         .seed = 11});
  }
  for (size_t i = 0; i < checkpoints.size(); ++i) {
    SCOPED_TRACE(fmt::format("model {}, {} % zeros", i, GetParam()));
    const RandomCheckpoint::Outcome first = checkpoints[i].check(cache_of(i));
    EXPECT_EQ(first.wrong, "");
    EXPECT_GT(first.tuned_choices, 0);
    const RandomCheckpoint::Outcome again = checkpoints[i].check(cache_of(i));
    EXPECT_EQ(again.wrong, "");
    EXPECT_EQ(again.tuned_choices, 0);
  }
  ASSERT_FALSE(HasFailure());  // or there may be no caches
  for (const auto& [loaded, tuned] :
       {std::pair<size_t, size_t>{1, 0}, {2, 0}, {0, 1}, {0, 2}, {1, 2}, {2, 1}}) {
    SCOPED_TRACE(fmt::format("model {} with the cache of {}", loaded, tuned));
    const std::filesystem::path cache = folder.path() / "foreign.json";
    std::filesystem::copy_file(cache_of(tuned), cache,
                               std::filesystem::copy_options::overwrite_existing);
    EXPECT_EQ(checkpoints[loaded].check(cache).wrong, "");
  }
}

}  // namespace
}  // namespace sparsellm
