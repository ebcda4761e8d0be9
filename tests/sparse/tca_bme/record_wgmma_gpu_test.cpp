#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "kernels/base/cuda_graph.h"
#include "kernels/base/error.h"
#include "sparse/tca_bme/format/record_parts.h"
#include "tests/sparse/tca_bme/record_wgmma_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using tca_bme::RecordParts;

constexpr int64_t kMaxTokens = 300;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

INSTANTIATE_TEST_SUITE_P(Gpu, GpuRecordWgmma, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

std::string describe(const RecordWgmmaConfig& config, int64_t tokens) {
  return fmt::format("{}, {} tokens", record_wgmma_name(config), tokens);
}

TEST_P(GpuRecordWgmma, CandidatesFit) {
  for (const auto& [rows, columns] : {Shape{1024, 1040}, Shape{1, 1}, Shape{65, 8}}) {
    for (double density : kDensities) {
      const DeviceMatrix loaded = load(weight({rows, columns}, density).view);
      for (int64_t tokens : kTokens) {
        const std::vector<RecordWgmmaConfig> configs =
            record_wgmma_candidates(loaded.matrix, tokens);
        EXPECT_FALSE(configs.empty());
        std::set<std::string> names;
        for (const RecordWgmmaConfig& config : configs) {
          EXPECT_TRUE(record_wgmma_fits(loaded.matrix, config)) << describe(config, tokens);
          EXPECT_TRUE(names.insert(record_wgmma_name(config)).second) << describe(config, tokens);
        }
      }
      RecordMatrix other = loaded.matrix;
      other.clusters = {};
      EXPECT_TRUE(record_wgmma_candidates(other, 64).empty());
      other = loaded.matrix;
      other.rows = 0;
      EXPECT_TRUE(record_wgmma_candidates(other, 64).empty());
      other = loaded.matrix;
      other.largest_record = 1 << 20;
      EXPECT_TRUE(record_wgmma_candidates(other, 64).empty());
      other = loaded.matrix;
      other.rows = int64_t{1} << 30;  // too many row blocks to go through in rounds
      for (const RecordWgmmaConfig& config : record_wgmma_candidates(other, 64)) {
        EXPECT_TRUE(config.stream_k) << describe(config, 64);
      }
      EXPECT_FALSE(record_wgmma_candidates(loaded.matrix, 0).empty());
    }
  }
}

TEST_P(GpuRecordWgmma, EveryTileIsACandidate) {
  for (double density : kDensities) {
    const DeviceMatrix loaded = load(weight({1024, 1040}, density).view);
    std::set<int> tiles;
    std::set<int> stream_k_tiles;
    for (const RecordWgmmaConfig& config : configs_of(loaded.matrix)) {
      (config.stream_k ? stream_k_tiles : tiles).insert(config.tile);
    }
    EXPECT_EQ(tiles, std::set<int>(std::begin(kTiles), std::end(kTiles)));
    EXPECT_EQ(stream_k_tiles, tiles);
  }
}

// Enough row blocks for the densities to come out as they should, and for blocks that take several.
TEST_P(GpuRecordWgmma, ProductsOfAllLayouts) {
  size_t number = 0;
  for (const Shape& shape : {Shape{1024, 520}, Shape{1022, 777}}) {
    const GuardedTensor contiguous = numbers(kMaxTokens, shape.columns);
    const PaddedTensor padded = padded_numbers(kMaxTokens, shape.columns);
    std::vector<Tensor> xs{padded.view};
    if (shape.columns % 8 == 0) {
      xs.push_back(contiguous.view());
    }
    const OwnedTensor bias = bias_of(shape.rows);
    const std::vector<double> bias_values = values_of(bias.view);
    for (size_t mix_number = 0; mix_number < std::size(kMixes); ++mix_number) {
      const Mix& mix = kMixes[mix_number];
      SCOPED_TRACE(fmt::format("[{}, {}], density {} and {}", shape.rows, shape.columns,
                               mix.density, mix.between));
      const Tensor& x = xs[mix_number % xs.size()];
      const OwnedTensor w = mixed_weight(shape, mix);
      const EncodedWeight encoded = tca_bme::encode_records(w.view, LayoutFor::speed, cpu.threads);
      ASSERT_TRUE(RecordParts(encoded).layout == mix.layout);
      const DeviceMatrix loaded(encoded, clusters);
      const std::vector<RecordWgmmaConfig> configs = configs_of(loaded.matrix);
      ASSERT_FALSE(configs.empty());
      const Expected all = expected_of(x, w.view);
      for (int64_t tokens : kTokens) {
        ++number;
        const RecordWgmmaConfig& config = configs[number % configs.size()];
        SCOPED_TRACE(describe(config, tokens));
        const bool has_bias = number % 4 < 2;
        const Activation activation{.kind = number % 5 == 0 ? Activation::Kind::relu
                                                            : Activation::Kind::none};
        const GuardedTensor y(GetParam(), {tokens, shape.rows},
                              number % 7 < 2 ? Layout::strided : Layout::contiguous, kGpu);
        multiply(loaded.matrix, x.rows(0, tokens), y.view(),
                 {.config = config,
                  .epilogue = {.bias = has_bias ? bias.view : Tensor(), .activation = activation},
                  .pdl = number % 3 == 0});
        gpu->cuda.synchronize();
        ASSERT_TRUE(all_close(
            y.view(),
            with_epilogue(first_rows(all, tokens, shape.rows),
                          has_bias ? bias_values : std::vector<double>(), activation.kind),
            kTolerance));
        ASSERT_TRUE(y.guards_intact());
      }
    }
  }
}

// On devices large and small.
TEST_P(GpuRecordWgmma, ProductsOfAllConfigurations) {
  size_t number = 0;
  for (const Shape& shape : {Shape{518, 1040}, Shape{130, 2056}}) {
    const GuardedTensor x = numbers(kMaxTokens, shape.columns);
    for (double density : kDensities) {
      const OwnedTensor w = weight(shape, density);
      const DeviceMatrix loaded = load(w.view);
      const Expected all = expected_of(x.view(), w.view);
      for (const RecordWgmmaConfig& config : configs_of(loaded.matrix)) {
        for (bool small : {false, true}) {
          const int64_t tokens = ++number % 3 == 0 ? kMaxTokens : config.tile - 3;
          SCOPED_TRACE(fmt::format("[{}, {}], density {}, {}, {} device", shape.rows, shape.columns,
                                   density, describe(config, tokens), small ? "small" : "large"));
          const GuardedTensor y(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
          multiply(small ? on_a_small_device(loaded.matrix) : loaded.matrix,
                   x.view().rows(0, tokens), y.view(),
                   {.config = config, .epilogue = {}, .pdl = true});
          gpu->cuda.synchronize();
          ASSERT_TRUE(all_close(y.view(), first_rows(all, tokens, shape.rows), kTolerance));
          ASSERT_TRUE(y.guards_intact());
        }
      }
    }
  }
}

TEST_P(GpuRecordWgmma, ManyPatternsOfWeights) {
  size_t number = 0;
  for (const Shape& shape :
       {Shape{1, 1}, Shape{16, 16}, Shape{64, 64}, Shape{65, 8}, Shape{127, 65}, Shape{256, 768}}) {
    const PaddedTensor x = padded_numbers(65, shape.columns);
    for (Pattern pattern : kPatterns) {
      for (double density : {0.0, 0.001, 0.1, 0.3, 0.5, 1.0}) {
        const OwnedTensor w = weight(shape, density, pattern);
        const DeviceMatrix loaded = load(w.view);
        const std::vector<RecordWgmmaConfig> configs = configs_of(loaded.matrix);
        ASSERT_FALSE(configs.empty());
        const Expected all = expected_of(x.view, w.view);
        for (int64_t tokens : {1, 33, 65}) {
          const RecordWgmmaConfig& config = configs[++number % configs.size()];
          SCOPED_TRACE(fmt::format("[{}, {}], density {}, {}, {}", shape.rows, shape.columns,
                                   density, name_of(pattern), describe(config, tokens)));
          const GuardedTensor y(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
          multiply(loaded.matrix, x.view.rows(0, tokens), y.view(),
                   {.config = config, .epilogue = {}, .pdl = number % 2 == 0});
          gpu->cuda.synchronize();
          ASSERT_TRUE(all_close(y.view(), first_rows(all, tokens, shape.rows), kTolerance));
          ASSERT_TRUE(y.guards_intact());
        }
      }
    }
  }
}

TEST_P(GpuRecordWgmma, RandomCases) {
  constexpr int kWeights = 80;
  constexpr int kProducts = 5;  // of each
  for (int round = 0; round < kWeights; ++round) {
    const int64_t most = round % 10 == 0 ? 1500 : 250;
    const Shape shape{1 + random.below(most), 1 + random.below(most)};
    const double density = random.uniform(0.0, 1.0) * random.uniform(0.0, 1.0);
    const OwnedTensor w = weight(shape, density);
    const DeviceMatrix loaded = load(w.view);
    const std::vector<RecordWgmmaConfig> configs = configs_of(loaded.matrix);
    ASSERT_FALSE(configs.empty());
    for (int product = 0; product < kProducts; ++product) {
      const int64_t tokens = 1 + random.below(product == 0 ? 600 : 100);
      const RecordWgmmaConfig& config =
          configs[static_cast<size_t>(random.below(std::ssize(configs)))];
      SCOPED_TRACE(fmt::format("[{}, {}], density {}, {}", shape.rows, shape.columns, density,
                               describe(config, tokens)));
      const PaddedTensor x = padded_numbers(tokens, shape.columns);
      const GuardedTensor y(GetParam(), {tokens, shape.rows},
                            product % 3 == 0 ? Layout::strided : Layout::contiguous, kGpu);
      multiply(loaded.matrix, x.view, y.view(),
               {.config = config, .epilogue = {}, .pdl = product % 2 == 0});
      gpu->cuda.synchronize();
      ASSERT_TRUE(all_close(y.view(), expected_of(x.view, w.view), kTolerance));
      ASSERT_TRUE(y.guards_intact());
    }
  }
}

// More records in a part than the lanes of a warp hold entries of the table for.
TEST_P(GpuRecordWgmma, ManyColumns) {
  constexpr int64_t kTokensOfAll = 40;
  const Shape shape{130, 17000};
  const GuardedTensor x = numbers(kTokensOfAll, shape.columns);
  for (double density : kDensities) {
    const OwnedTensor w = weight(shape, density);
    const DeviceMatrix loaded = load(w.view);
    const Expected expected = expected_of(x.view(), w.view);
    for (const RecordWgmmaConfig& config : some_configs_of(loaded.matrix)) {
      SCOPED_TRACE(fmt::format("density {}, {}", density, describe(config, kTokensOfAll)));
      const GuardedTensor y(GetParam(), {kTokensOfAll, shape.rows}, Layout::contiguous, kGpu);
      multiply(loaded.matrix, x.view(), y.view(), {.config = config, .epilogue = {}, .pdl = true});
      gpu->cuda.synchronize();
      EXPECT_TRUE(all_close(y.view(), expected, kTolerance));
      EXPECT_TRUE(y.guards_intact());
    }
  }
}

// More than one launch takes.
TEST_P(GpuRecordWgmma, ManyTokens) {
  constexpr int64_t kMany = 1537;  // a single one for the last launch
  const Shape shape{70, 136};
  const GuardedTensor x = numbers(kMany, shape.columns);
  for (double density : kDensities) {
    const OwnedTensor w = weight(shape, density);
    const DeviceMatrix loaded = load(w.view);
    const Expected expected = expected_of(x.view(), w.view);
    for (const RecordWgmmaConfig& config : some_configs_of(loaded.matrix)) {
      SCOPED_TRACE(fmt::format("density {}, {}", density, describe(config, kMany)));
      const GuardedTensor y(GetParam(), {kMany, shape.rows}, Layout::contiguous, kGpu);
      multiply(on_a_small_device(loaded.matrix), x.view(), y.view(),
               {.config = config, .epilogue = {}, .pdl = true});
      gpu->cuda.synchronize();
      EXPECT_TRUE(all_close(y.view(), expected, kTolerance));
      EXPECT_TRUE(y.guards_intact());
    }
  }
}

// Only in the outputs of its own token, and there wherever a weight multiplies it.
TEST_P(GpuRecordWgmma, WhatIsNotFiniteStaysInItsToken) {
  constexpr int64_t kColumn = 261;
  const Shape shape{130, 264};
  size_t number = 0;
  for (double density : {1.0, 0.25, 0.1}) {
    const OwnedTensor w = weight(shape, density);
    const std::vector<double> weights = values_of(w.view);
    const DeviceMatrix loaded = load(w.view);
    const GuardedTensor x = numbers(kMaxTokens, shape.columns);
    const std::vector<double> numbers_of_x = values_of(x.view());
    for (const RecordWgmmaConfig& config : some_configs_of(loaded.matrix)) {
      const auto product_of = [&](int64_t tokens) {
        GuardedTensor y(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
        multiply(loaded.matrix, x.view().rows(0, tokens), y.view(),
                 {.config = config, .epilogue = {}});
        gpu->cuda.synchronize();
        return y;
      };
      set_values(x.view(), numbers_of_x);
      const GuardedTensor finite = product_of(kMaxTokens);
      for (int64_t token : {1, 63, 64, 298}) {
        const double bad = ++number % 2 == 0 ? kNan : std::numeric_limits<double>::infinity();
        SCOPED_TRACE(fmt::format("density {}, {} in token {}, {}", density, bad, token,
                                 describe(config, kMaxTokens)));
        std::vector<double> changed = numbers_of_x;
        changed[static_cast<size_t>(token * shape.columns + kColumn)] = bad;
        set_values(x.view(), changed);
        const GuardedTensor y = product_of(kMaxTokens);
        EXPECT_TRUE(same_bits(y.view().rows(0, token), finite.view().rows(0, token)));
        const int64_t after = kMaxTokens - token - 1;
        EXPECT_TRUE(
            same_bits(y.view().rows(token + 1, after), finite.view().rows(token + 1, after)));
        const std::vector<double> outputs = values_of(y.view().rows(token, 1));
        for (int64_t row = 0; row < shape.rows; ++row) {
          if (weights[static_cast<size_t>(row * shape.columns + kColumn)] != 0.0) {
            EXPECT_FALSE(std::isfinite(outputs[static_cast<size_t>(row)])) << "row " << row;
          }
        }
        // A batch that ends before the token does not read it.
        EXPECT_TRUE(same_bits(product_of(token).view(), finite.view().rows(0, token)));
      }
    }
  }
}

// With the same configuration, in any batch, run after run, with PDL or not; without Stream-K,
// on any device.
TEST_P(GpuRecordWgmma, ARowHasTheSameBitsAlways) {
  for (const Shape& shape : {Shape{518, 1040}, Shape{700, 328}}) {
    for (double density : kDensities) {
      const DeviceMatrix loaded = load(weight(shape, density).view);
      const RecordMatrix small = on_a_small_device(loaded.matrix);
      const GuardedTensor x = numbers(kMaxTokens, shape.columns);
      for (const RecordWgmmaConfig& config : some_configs_of(loaded.matrix)) {
        const GuardedTensor all(GetParam(), {kMaxTokens, shape.rows}, Layout::contiguous, kGpu);
        multiply(loaded.matrix, x.view(), all.view(), {.config = config, .epilogue = {}});
        bool pdl = false;
        for (int64_t tokens : {1, 1, 17, 33, 64, 130, 130, 257, 300, 300}) {
          pdl = !pdl;
          const bool on_small = !config.stream_k && tokens % 2 == 0 && pdl;
          const int64_t begin = (kMaxTokens - tokens) / 2;
          const GuardedTensor y(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
          multiply(on_small ? small : loaded.matrix, x.view().rows(begin, tokens), y.view(),
                   {.config = config, .epilogue = {}, .pdl = pdl});
          gpu->cuda.synchronize();
          EXPECT_TRUE(same_bits(y.view(), all.view().rows(begin, tokens)))
              << fmt::format("[{}, {}], density {}, {}", shape.rows, shape.columns, density,
                             describe(config, tokens));
        }
      }
    }
  }
}

// Each product reads what the one before it writes, and writes what that one reads.
TEST_P(GpuRecordWgmma, EarlyLaunchesWaitForEachOther) {
  constexpr int kProducts = 5;
  constexpr int kRounds = 10;
  constexpr int64_t kSize = 512;
  const DeviceMatrix loaded = load(weight({kSize, kSize}, 0.1).view);
  for (int64_t tokens : {40, 200}) {
    const GuardedTensor x = numbers(tokens, kSize);
    for (const RecordWgmmaConfig& config : some_configs_of(loaded.matrix)) {
      const GuardedTensor odd(GetParam(), {tokens, kSize}, Layout::contiguous, kGpu);
      const GuardedTensor even(GetParam(), {tokens, kSize}, Layout::contiguous, kGpu);
      const auto chain = [&](bool pdl) {
        Tensor from = x.view();
        for (int i = 0; i < kProducts; ++i) {
          const Tensor to = i % 2 == 0 ? even.view() : odd.view();
          multiply(loaded.matrix, from, to, {.config = config, .epilogue = {}, .pdl = pdl});
          from = to;
        }
      };
      chain(false);
      gpu->cuda.synchronize();
      const GuardedTensor expected(GetParam(), {tokens, kSize}, Layout::contiguous, kGpu);
      set_values(expected.view(), values_of(even.view()));
      for (int round = 0; round < kRounds; ++round) {
        chain(true);
      }
      gpu->cuda.synchronize();
      EXPECT_TRUE(same_bits(even.view(), expected.view())) << describe(config, tokens);
      EXPECT_TRUE(even.guards_intact());
      EXPECT_TRUE(odd.guards_intact());
    }
  }
}

// At new values in the same places.
TEST_P(GpuRecordWgmma, RunsInAGraph) {
  const Shape shape{700, 264};
  const OwnedTensor w = weight(shape, 0.4);
  const DeviceMatrix loaded = load(w.view);
  for (int64_t tokens : {40, 100}) {
    const RecordWgmmaConfig config = record_wgmma_candidates(loaded.matrix, tokens).front();
    const GuardedTensor x = numbers(tokens, shape.columns);
    const GuardedTensor y(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
    CudaGraph graph(gpu->cuda, [&] {
      multiply(loaded.matrix, x.view(), y.view(),
               {.config = config, .epilogue = {}, .pdl = tokens == 40});
    });
    for (int round = 0; round < 2; ++round) {
      set_values(x.view(), values(tokens * shape.columns));
      graph.launch();
      gpu->cuda.synchronize();
      EXPECT_TRUE(all_close(y.view(), expected_of(x.view(), w.view), kTolerance));
    }
  }
}

TEST_P(GpuRecordWgmma, RefusesWhatItDoesNotTake) {
  const DeviceMatrix loaded = load(weight({64, 64}, 1.0).view);
  const How how{.config = record_wgmma_candidates(loaded.matrix, 40).front(), .epilogue = {}};
  const GuardedTensor x = numbers(40, 64);
  const GuardedTensor y(GetParam(), {40, 64}, Layout::contiguous, kGpu);
  const GuardedTensor unaligned = numbers(40, 64, Layout::strided);
  EXPECT_THROW(multiply(loaded.matrix, unaligned.view(), y.view(), how), Error);
  const GuardedTensor f32(DType::f32, {40, 64}, Layout::contiguous, kGpu);
  EXPECT_THROW(multiply(loaded.matrix, f32.view(), y.view(), how), Error);
  RecordMatrix other = loaded.matrix;
  other.chunks = 5;
  EXPECT_THROW(multiply(other, x.view(), y.view(), how), Error);
  other = loaded.matrix;
  other.largest_record = 1 << 20;
  EXPECT_FALSE(record_wgmma_fits(other, how.config));
  EXPECT_THROW(multiply(other, x.view(), y.view(), how), Error);
  other = loaded.matrix;
  other.clusters = {};
  EXPECT_FALSE(record_wgmma_fits(other, how.config));
  EXPECT_THROW(multiply(other, x.view(), y.view(), how), Error);
}

TEST_P(GpuRecordWgmma, NothingToDo) {
  const DeviceMatrix loaded = load(weight({64, 64}, 1.0).view);
  const How how{.config = record_wgmma_candidates(loaded.matrix, 40).front(), .epilogue = {}};
  const GuardedTensor x = numbers(40, 64);
  const GuardedTensor y(GetParam(), {40, 64}, Layout::contiguous, kGpu);
  const GuardedTensor untouched(GetParam(), {40, 64}, Layout::contiguous, kGpu);
  EXPECT_NO_THROW(multiply(loaded.matrix, x.view().rows(0, 0), y.view().rows(0, 0), how));
  RecordMatrix empty = loaded.matrix;
  empty.rows = 0;
  EXPECT_NO_THROW(multiply(empty, x.view(), y.view(), how));
  gpu->cuda.synchronize();
  EXPECT_TRUE(same_bits(y.view(), untouched.view()));
}

// One token may have any stride.
TEST_P(GpuRecordWgmma, RowsAreAlignedTo16Bytes) {
  const GuardedTensor x(GetParam(), {2, 72}, Layout::contiguous, kGpu);
  const auto takes = [&](const Tensor& rows) {
    return record_wgmma_takes({}, {.x = rows.raw(),
                                   .x_stride = rows.row_stride(),
                                   .tokens = rows.size(0),
                                   .dtype = rows.dtype()});
  };
  EXPECT_TRUE(takes(x.view()));
  EXPECT_TRUE(takes(x.view().columns(8, 3)));
  EXPECT_FALSE(takes(x.view().columns(1, 64)));
  EXPECT_FALSE(takes(x.view().columns(4, 64)));
  const GuardedTensor odd(GetParam(), {2, 71}, Layout::contiguous, kGpu);
  EXPECT_FALSE(takes(odd.view()));
  EXPECT_TRUE(takes(odd.view().rows(0, 1)));
}

}  // namespace
}  // namespace sparsellm
