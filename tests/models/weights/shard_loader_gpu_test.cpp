// What loaders give to a rank on the first CUDA device: the values of the whole in their place.

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "models/weights/empty_weight.h"
#include "models/weights/random_loader.h"
#include "sparse/activation/sign_words.h"
#include "tests/models/weights/stored_weights.h"
#include "tests/testing/gpu_context.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using Order = WeightLoader::Order;

class GpuShardLoader : public GpuTest {
 protected:
  std::vector<double> expanded(const WeightMatrix& weight) {
    const OwnedTensor dense =
        allocate_tensor(kGpu, weight.dtype(), {weight.out(), weight.in()}, "a test");
    if (weight.bytes() > 0) {
      weight.expand({.begin = 0, .count = weight.out()}, dense.view, gpu->exec);
      gpu->cuda.synchronize();
    }
    return values_of(dense.view);
  }

  void expect_weights_of_ranks(const StoredWeights& stored, const std::string& format) {
    for (const int64_t degree : kDegrees) {
      for (int64_t rank = 0; rank < degree; ++rank) {
        SCOPED_TRACE(fmt::format("{}: rank {} of {}", format, rank, degree));
        const Shard shard{.rank = rank, .degree = degree};
        CheckpointLoader loader = stored.loader(shard, format, kGpu);
        std::vector<std::pair<const WeightRequest*, Linear>> linears;
        for (const WeightRequest& request : kRequests) {
          if (can_share(request, degree)) {
            linears.emplace_back(&request, loader.linear(request));
          }
        }
        loader.finish();
        for (const auto& [request, linear] : linears) {
          SCOPED_TRACE(request->parts.front().module);
          EXPECT_EQ(expanded(*linear.weight), stored.weight(*request, shard));
          EXPECT_EQ(values_of(linear.bias.view), stored.bias(*request, shard));
        }
      }
    }
  }
};

TEST_F(GpuShardLoader, Weights) {
  const StoredWeights plain("", 0.5);
  for (const char* format : {"", "tca_bme", "tiled_csl"}) {
    expect_weights_of_ranks(plain, format);
  }
  for (const char* format : {"tca_bme", "tiled_csl"}) {
    for (const double density : {0.35, 0.21}) {
      const StoredWeights stored(format, density);
      expect_weights_of_ranks(stored, "");
      expect_weights_of_ranks(stored, "dense");
    }
  }
}

TEST_F(GpuShardLoader, DenseLayersOfNeurons) {
  for (const char* format : {"", "tca_bme", "tiled_csl"}) {
    SCOPED_TRACE(format);
    const StoredWeights stored(format, 0.35);
    const Shard shard{.rank = 1, .degree = 3};
    CheckpointLoader loader = stored.loader(shard, {}, kGpu);
    OwnedSignWords signs;
    const WeightLoader::DenseLinear up = loader.dense_linear(kUp, Order::rows, &signs);
    const WeightLoader::DenseLinear down = loader.dense_linear(kDown, Order::transposed);
    loader.finish();
    EXPECT_EQ(values_of(up.weight.view), stored.weight(kUp, shard));
    const std::vector<double> expected = stored.weight(kDown, shard);
    const std::vector<double> got = values_of(down.weight.view);
    const int64_t neurons = columns_of(kDown, shard).count;
    EXPECT_EQ(signs.view().rows(), neurons);
    ASSERT_EQ(got.size(), expected.size());
    for (int64_t i = 0; i < std::ssize(expected); ++i) {
      ASSERT_EQ(got[static_cast<size_t>(i % neurons * 200 + i / neurons)],
                expected[static_cast<size_t>(i)]);
    }
  }
}

// By the device, and by the host where columns of other ranks share scales.
TEST_F(GpuShardLoader, NarrowValuesAreThoseOfTheCpu) {
  const StoredWeights plain("", 0.4);
  for (const char* values : {"i8", "f8", "i4", "i4:32"}) {
    for (const int64_t degree : {1, 2, 3, 8}) {
      for (int64_t rank = 0; rank < degree; ++rank) {
        SCOPED_TRACE(fmt::format("{}: rank {} of {}", values, rank, degree));
        const auto loader_on = [&](Device device) {
          return CheckpointLoader(plain.checkpoint(), device, std::nullopt, {},
                                  {.format = "tca_bme", .threads = 1, .records = values},
                                  {.rank = rank, .degree = degree});
        };
        CheckpointLoader on_cpu = loader_on({});
        CheckpointLoader on_gpu = loader_on(kGpu);
        std::vector<std::pair<Linear, Linear>> linears;
        for (const WeightRequest& request : kRequests) {
          if (can_share(request, degree)) {
            linears.emplace_back(on_cpu.linear(request), on_gpu.linear(request));
          }
        }
        on_cpu.finish();
        on_gpu.finish();
        for (const auto& [expected, linear] : linears) {
          ASSERT_EQ(linear.weight->dtype(), expected.weight->dtype());
          const OwnedTensor dense =
              allocate_tensor({}, expected.weight->dtype(),
                              {expected.weight->out(), expected.weight->in()}, "a test");
          expected.weight->expand({.begin = 0, .count = expected.weight->out()}, dense.view,
                                  cpu.exec);
          EXPECT_EQ(expanded(*linear.weight), values_of(dense.view));
        }
      }
    }
  }
}

TEST_F(GpuShardLoader, RandomWeightsAreThoseOfTheCpu) {
  for (const char* format : {"dense", "tca_bme"}) {
    const RandomWeights weights{.dtype = DType::f16, .sparsity = 0.6, .format = format};
    const Shard shard{.rank = 1, .degree = 4};
    RandomLoader on_cpu({}, weights, shard);
    RandomLoader on_gpu(kGpu, weights, shard);
    for (const WeightRequest& request : kRequests) {
      const Linear expected = on_cpu.linear(request);
      const Linear linear = on_gpu.linear(request);
      on_gpu.finish();
      const OwnedTensor dense = allocate_tensor(
          {}, DType::f16, {expected.weight->out(), expected.weight->in()}, "a test");
      expected.weight->expand({.begin = 0, .count = expected.weight->out()}, dense.view, cpu.exec);
      EXPECT_EQ(expanded(*linear.weight), values_of(dense.view));
    }
  }
}

TEST_F(GpuShardLoader, AnEmptyWeightAddsZeros) {
  const GuardedTensor y(DType::f16, {5, 24}, Layout::contiguous, kGpu);
  EmptyWeight(24, 0, DType::f16).matmul({}, y.view(), {}, gpu->exec);
  gpu->cuda.synchronize();
  EXPECT_EQ(values_of(y.view()), std::vector<double>(5 * 24, 0.0));
  EXPECT_TRUE(y.guards_intact());
}

}  // namespace
}  // namespace sparsellm
