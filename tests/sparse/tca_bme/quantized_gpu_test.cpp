#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sparse/quantize/quantized_matrix.h"
#include "sparse/tca_bme/cuda/record_weight.cuh"
#include "sparse/tca_bme/quantized/quantized_parts.h"
#include "tests/sparse/tca_bme/quantized_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using tca_bme::CudaRecordWeight;

using Kind = QuantizedKind;

constexpr Kind kKinds[] = {{ValueType::i8},
                           {ValueType::f8},
                           {ValueType::i4, 32},
                           {ValueType::i4, 64},
                           {ValueType::i4, 128},
                           {ValueType::i8, 0, "dense_i8"},
                           {ValueType::i4, 32, "dense_i4"},
                           {ValueType::i4, 64, "dense_i4"},
                           {ValueType::i4, 128, "dense_i4"}};
// One of each way to multiply them.
constexpr Kind kFewKinds[] = {kKinds[0], kKinds[5], kKinds[7]};

INSTANTIATE_TEST_SUITE_P(Gpu, GpuQuantized, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(GpuQuantized, EveryConfigurationMultiplies) {
  uint64_t seed = 1;
  for (const Shape& shape :
       {Shape{1, 1}, Shape{64, 128}, Shape{127, 130}, Shape{65, 700}, Shape{1100, 520}}) {
    const GuardedTensor x = numbers(130, shape.columns, Layout::contiguous);
    const GuardedTensor strided = numbers(130, shape.columns, Layout::strided);
    for (const Kind& kind : kKinds) {
      for (const double density : {0.0, 0.01, 0.3, 1.0}) {
        if (shape.rows > 1000 && density != 0.3) {
          continue;
        }
        const QuantizedMatrix q = matrix_of(kind, shape, density, ++seed);
        const OwnedTensor w = dense_of(q);
        const std::vector<double> sums = sums_of(w.view);
        const std::unique_ptr<WeightMatrix> loaded = load_quantized(kind, q);
        const Tensor& all_x = seed % 3 == 0 ? strided.view() : x.view();
        const Expected all = expected_of(all_x, w.view);
        for (const int64_t tokens : {1, 4, 5, 8, 16, 17, 70}) {
          SCOPED_TRACE(fmt::format("[{}, {}] of {} {}, density {}, {} tokens", shape.rows,
                                   shape.columns, kind.format, name_of(kind.type), density,
                                   tokens));
          const Expected exact = first_rows(all, tokens, shape.rows);
          const Expected rounded =
              with_rounded_x(exact, all_x.rows(0, tokens), sums, /*first_column=*/0);
          const auto configs = as_records(*loaded).configs_for(GetParam(), tokens);
          ASSERT_FALSE(configs.empty());
          ASSERT_EQ(kind.type != ValueType::f8 && tokens <= kMaxByteTokens,
                    std::ranges::any_of(configs, &RecordMatmulConfig::bytes));
          for (size_t i = 0; i < configs.size(); i += 1 + configs.size() / 2) {
            SCOPED_TRACE(record_matmul_name(configs[i]));
            const Product product{.layout = i % 2 == 0 ? Layout::contiguous : Layout::strided,
                                  .has_bias = (seed + i) % 3 == 0,
                                  .activation = (seed + i) % 4 == 0 ? Activation::Kind::relu
                                                                    : Activation::Kind::none};
            ASSERT_TRUE(gives(tokens, shape.rows, configs[i].bytes ? rounded : exact, product,
                              [&](const Tensor& y, const Epilogue& epilogue) {
                                as_records(*loaded).run(configs[i], all_x.rows(0, tokens), y,
                                                        epilogue, *exec);
                              }));
          }
        }
      }
    }
  }
}

TEST_P(GpuQuantized, WarpgroupsMultiply) {
  uint64_t seed = 50;
  for (const Kind& kind : kKinds) {
    const bool in_integers = kind.type == ValueType::i8;
    for (const Shape& shape :
         {Shape{64, 128}, Shape{130, 137}, Shape{200, 1304}, Shape{70, 4363}, Shape{8500, 648}}) {
      for (const double density : {0.0, 0.05, 0.4, 0.6, 1.0}) {
        if ((shape.rows > 1000 && density != 0.4) || (!in_integers && density == 0.6)) {
          continue;
        }
        QuantizedMatrix q = matrix_of(kind, shape, density, ++seed);
        if (density == 0.05) {  // a few rows whose records are much larger
          std::fill_n(q.codes.begin(), std::min<int64_t>(shape.rows, 20) * shape.columns,
                      int8_t{-7});
        }
        const OwnedTensor w = dense_of(q);
        const std::vector<double> sums = sums_of(w.view);
        const std::unique_ptr<WeightMatrix> loaded = load_quantized(kind, q);
        // So many that the largest clusters take several launches.
        const int64_t most = shape.columns > 4000 ? 300 : 140;
        const GuardedTensor x(GetParam(), {most, shape.columns},
                              seed % 2 == 0 ? Layout::strided : Layout::contiguous, kGpu);
        std::vector<double> all_x = values(most * shape.columns);
        for (size_t i = 0; i < all_x.size(); ++i) {  // blocks, and tokens, have their own scales
          const int64_t column = static_cast<int64_t>(i) % shape.columns;
          const int64_t token = static_cast<int64_t>(i) / shape.columns;
          all_x[i] *= std::exp2(-static_cast<double>(column / 512 % 3 + token % 5));
        }
        set_values(x.view(), all_x);
        const Expected all = expected_of(x.view(), w.view);
        for (const int64_t tokens : {int64_t{9}, int64_t{16}, int64_t{17}, int64_t{32}, int64_t{33},
                                     int64_t{64}, int64_t{70}, most}) {
          SCOPED_TRACE(fmt::format("[{}, {}] of {}, density {}, {} tokens", shape.rows,
                                   shape.columns, kind.format, density, tokens));
          const Tensor some = x.view().rows(0, tokens);
          const Expected exact = first_rows(all, tokens, shape.rows);
          const Expected expected =
              in_integers ? with_rounded_x(exact, some, sums, /*first_column=*/0) : exact;
          const auto configs = as_records(*loaded).wgmma_configs_for(GetParam(), tokens);
          ASSERT_EQ(configs.empty(), !in_integers && tokens < 17);
          for (size_t i = seed % 3; i < configs.size(); i += 3) {
            SCOPED_TRACE(record_wgmma_name(configs[i]));
            const Product product{.layout = i % 2 == 0 ? Layout::contiguous : Layout::strided,
                                  .has_bias = (seed + i) % 3 == 0,
                                  .activation = (seed + i) % 4 == 0 ? Activation::Kind::relu
                                                                    : Activation::Kind::none};
            ASSERT_TRUE(gives(tokens, shape.rows, expected, product,
                              [&](const Tensor& y, const Epilogue& epilogue) {
                                as_records(*loaded).run(configs[i], some, y, epilogue, *exec);
                              }));
          }
        }
      }
    }
  }
}

TEST_P(GpuQuantized, LargeInputsDoNotDrownOthers) {
  constexpr int64_t kBlock = 512;  // of columns, whose inputs have one scale
  for (const Kind& kind : kKinds) {
    for (const Shape& shape : {Shape{192, 3000}, Shape{64, 700}}) {
      QuantizedMatrix q = matrix_of(kind, shape, 0.4, 7);
      for (int64_t row = 0; row < shape.rows; ++row) {
        std::fill_n(q.codes.begin() + row * shape.columns, kBlock, int8_t{0});
      }
      const OwnedTensor w = dense_of(q);
      const std::vector<double> sums = sums_of(w.view);
      const std::unique_ptr<WeightMatrix> loaded = load_quantized(kind, q);
      constexpr int64_t kTokens = 20;
      GuardedTensor x(GetParam(), {kTokens, shape.columns}, Layout::contiguous, kGpu);
      std::vector<double> all_x = values(kTokens * shape.columns);
      for (int64_t token = 0; token < kTokens; ++token) {
        all_x[static_cast<size_t>(token * shape.columns + 16 * token)] =
            30000.0;  // the first records
      }
      set_values(x.view(), all_x);
      const Expected all = expected_of(x.view(), w.view);
      for (const int64_t tokens : {1, 4, 8, 20}) {
        const Tensor some = x.view().rows(0, tokens);
        EXPECT_TRUE(multiplies(
            *loaded, some, with_rounded_x(first_rows(all, tokens, shape.rows), some, sums, kBlock),
            {}));
      }
    }
  }
}

TEST_P(GpuQuantized, WhatIsNotFiniteIsNotLost) {
  constexpr int64_t kColumns = 1100;
  for (const Kind& kind : kFewKinds) {
    const QuantizedMatrix q = matrix_of(kind, {70, kColumns}, 1.0, 9);
    const std::unique_ptr<WeightMatrix> loaded = load_quantized(kind, q);
    for (const double strange : {std::nan(""), std::numeric_limits<double>::infinity(),
                                 -std::numeric_limits<double>::infinity()}) {
      for (const int64_t at : {int64_t{0}, int64_t{600}, kColumns - 1}) {
        for (const int64_t tokens : {1, 3, 6, 20}) {
          GuardedTensor x(GetParam(), {tokens, kColumns}, Layout::contiguous, kGpu);
          std::vector<double> all = values(tokens * kColumns);
          all[static_cast<size_t>(at)] = strange;  // of the first token
          set_values(x.view(), all);
          const GuardedTensor y(GetParam(), {tokens, 70}, Layout::contiguous, kGpu);
          loaded->matmul(x.view(), y.view(), {}, *exec);
          const std::vector<double> result = values_of(cpu_twin(y.view()).view());
          for (size_t i = 0; i < result.size(); ++i) {
            ASSERT_EQ(std::isfinite(result[i]), i >= 70)
                << i << " of " << kind.format << " with " << strange;
          }
        }
      }
    }
  }
}

TEST_P(GpuQuantized, ZerosAndTinyInputs) {
  constexpr int64_t kColumns = 900;
  for (const Kind& kind : kFewKinds) {
    const QuantizedMatrix q = matrix_of(kind, {130, kColumns}, 0.5, 11);
    const std::unique_ptr<WeightMatrix> loaded = load_quantized(kind, q);
    for (const double size : {0.0, 1e-38, 1e-30, 6e-8}) {
      for (const int64_t tokens : {1, 8, 20}) {
        GuardedTensor x(GetParam(), {tokens, kColumns}, Layout::contiguous, kGpu);
        set_values(x.view(), std::vector<double>(static_cast<size_t>(tokens * kColumns), size));
        const GuardedTensor y(GetParam(), {tokens, 130}, Layout::contiguous, kGpu);
        loaded->matmul(x.view(), y.view(), {}, *exec);
        for (const double v : values_of(cpu_twin(y.view()).view())) {
          ASSERT_TRUE(std::abs(v) <= size * 128.0 * kColumns + 1e-30) << v << " " << kind.format;
        }
      }
    }
  }
}

// Leaves 2 to 24 significant bits of each, with which products are halfway between two numbers of
// 16 bits or need more bits than f32 has; of some, products are subnormal.
void vary_precision(std::vector<float>& scales) {
  for (size_t i = 0; i < scales.size(); ++i) {
    const uint32_t kept = ~0U << i % 23;
    scales[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(scales[i]) & kept);
    scales[i] *= i % 5 == 3 ? 0x1p-12F : 1.F;
  }
}

TEST_P(GpuQuantized, ExpandsToTheRoundedValues) {
  uint64_t seed = 100;
  for (const Shape& shape : {Shape{1, 1}, Shape{64, 128}, Shape{130, 300}, Shape{200, 1304}}) {
    for (const Kind& kind : kKinds) {
      for (const double density : {0.0, 0.3, 0.5, 1.0}) {
        QuantizedMatrix q = random_quantized({.type = kind.type,
                                              .group = kind.group,
                                              .rows = shape.rows,
                                              .columns = shape.columns,
                                              .density = density},
                                             ++seed);
        without_negative_zeros(q);
        if (kind.type != ValueType::i4) {
          vary_precision(q.scales);
        }
        const OwnedTensor w = dense_of(q);
        const std::unique_ptr<WeightMatrix> loaded = load_quantized(kind, q);
        for (const int64_t begin : {int64_t{0}, shape.rows / 3}) {
          const Range rows{.begin = begin, .count = shape.rows - begin};
          const GuardedTensor dense(GetParam(), {rows.count, shape.columns}, Layout::contiguous,
                                    kGpu);
          loaded->expand(rows, dense.view(), *exec);
          gpu->cuda.synchronize();
          EXPECT_TRUE(same_bits(dense.view(), w.view.rows(begin, rows.count)))
              << kind.format << " " << name_of(kind.type) << " " << density;
          EXPECT_TRUE(dense.guards_intact());
        }
      }
    }
  }
}

TEST_P(GpuQuantized, ManyTokens) {
  const GuardedTensor x = numbers(700, 520);
  for (const Kind& kind : kFewKinds) {
    const QuantizedMatrix q = matrix_of(kind, {300, 520}, 0.4, 13);
    const OwnedTensor w = dense_of(q);
    const std::unique_ptr<WeightMatrix> loaded = load_quantized(kind, q);
    EXPECT_TRUE(multiplies(*loaded, x.view(), expected_of(x.view(), w.view), {.has_bias = true}))
        << kind.format;
  }
}

TEST_P(GpuQuantized, BatchInvariantProductsDoNotDependOnTheOtherTokens) {
  const GuardedTensor x = numbers(70, 1000);
  exec->sums = Sums::batch_invariant;
  for (const Kind& kind : kFewKinds) {
    const QuantizedMatrix q = matrix_of(kind, {200, 1000}, 0.4, 15);
    const std::unique_ptr<WeightMatrix> loaded = load_quantized(kind, q);
    const GuardedTensor all(GetParam(), {70, 200}, Layout::contiguous, kGpu);
    loaded->matmul(x.view(), all.view(), {}, *exec);
    for (const int64_t tokens : {1, 4, 8, 9, 16, 17, 64}) {
      const GuardedTensor y(GetParam(), {tokens, 200}, Layout::contiguous, kGpu);
      loaded->matmul(x.view().rows(0, tokens), y.view(), {}, *exec);
      gpu->cuda.synchronize();
      EXPECT_TRUE(same_bits(y.view(), all.view().rows(0, tokens))) << kind.format << " " << tokens;
    }
  }
}

TEST_P(GpuQuantized, PartsAreJoined) {
  for (const Kind& kind : kKinds) {
    // Rows that follow each other in records, that do not, and layouts that differ.
    for (const auto& [rows, density] :
         {std::pair<int64_t, double>{64, 0.3}, {50, 0.3}, {64, 0.9}}) {
      const QuantizedMatrix first = matrix_of(kind, {rows, 300}, density, 17);
      const QuantizedMatrix second = matrix_of(kind, {77, 300}, 0.3, 18);
      std::vector<EncodedWeight> parts;
      parts.push_back(encode(kind, first));
      parts.push_back(encode(kind, second));
      const std::unique_ptr<WeightMatrix> loaded = load(weight_format(kind.format), parts);
      const GuardedTensor dense(GetParam(), {rows + 77, 300}, Layout::contiguous, kGpu);
      loaded->expand({.begin = 0, .count = rows + 77}, dense.view(), *exec);
      gpu->cuda.synchronize();
      EXPECT_TRUE(same_bits(dense.view().rows(0, rows), dense_of(first).view));
      EXPECT_TRUE(same_bits(dense.view().rows(rows, 77), dense_of(second).view));
    }
  }
}

}  // namespace
}  // namespace sparsellm
