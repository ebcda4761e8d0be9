// The measuring of kernels: operands, verification, timing, and a whole run on small shapes.

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/cuda_state.cuh"
#include "kernels/base/token_buckets.h"
#include "kernels/base/tune_cache.h"
#include "kernels/fill_random.h"
#include "kernels/gemm.h"
#include "kernels/gemm_candidates.cuh"
#include "kernels/gemm_tuning.cuh"
#include "sparse/dense/dense.h"
#include "sparse/quantize/code_values.h"
#include "tests/testing/gpu_context.h"
#include "tests/testing/paths.h"
#include "tests/testing/random.h"
#include "tests/testing/throws_error.h"
#include "tools/bench/ablation.h"
#include "tools/bench/format_contender.h"
#include "tools/bench/fp8_rounding.h"
#include "tools/bench/kernel.h"
#include "tools/bench/layers.h"
#include "tools/bench/read_bandwidth.h"
#include "tools/bench/replay_timer.h"
#include "tools/bench/verify_product.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

class BenchKernel : public GpuTest {
 protected:
  static GuardedTensor on_gpu(std::initializer_list<int64_t> sizes) {
    return GuardedTensor(GetParam(), sizes, Layout::contiguous, kGpu);
  }
  void fill(const Tensor& x, double sparsity, uint64_t seed) {
    const Tensor flat(x.raw(), x.dtype(), {x.element_count()}, x.device());
    fill_random({.key = seed, .sparsity = sparsity}, flat, gpu->exec);
  }
  GuardedTensor filled(std::initializer_list<int64_t> sizes, double sparsity, uint64_t seed) {
    GuardedTensor x = on_gpu(sizes);
    fill(x.view(), sparsity, seed);
    gpu->cuda.synchronize();
    EXPECT_TRUE(x.guards_intact());
    return x;
  }
  ContenderInput input_of(const Tensor& w, TuneCache& cache) {
    return {.weight = w,
            .rotation_bytes = 1 << 18,
            .max_tokens = 8,
            .ctx = gpu->exec,
            .tune_cache = cache};
  }
};
INSTANTIATE_TEST_SUITE_P(Gpu, BenchKernel, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(BenchKernel, RandomWeightsHaveTheirShareOfZeros) {
  for (const double sparsity : {0.0, 0.5, 0.9, 1.0}) {
    const std::vector<double> values = values_of(filled({331, 301}, sparsity, 7).view());
    double zeros = 0.0;
    double sum = 0.0;
    for (const double value : values) {
      ASSERT_LE(std::abs(value), 1.0);  // a NaN fails
      zeros += value == 0.0 ? 1.0 : 0.0;
      sum += value;
    }
    const auto count = static_cast<double>(values.size());
    // Five standard deviations, and none where there is no chance.
    EXPECT_NEAR(zeros / count, sparsity, 5.0 * std::sqrt(sparsity * (1.0 - sparsity) / count));
    EXPECT_NEAR(sum / count, 0.0, 5.0 * std::sqrt((1.0 - sparsity) / 3.0 / count));
  }
}

TEST_P(BenchKernel, RandomWeightsDependOnTheSeedAlone) {
  const GuardedTensor x = filled({33, 65}, 0.5, 1);
  EXPECT_TRUE(same_bits(filled({33, 65}, 0.5, 1).view(), x.view()));
  EXPECT_FALSE(same_bits(filled({33, 65}, 0.5, 2).view(), x.view()));
}

TEST_P(BenchKernel, TheReferenceIsTheProduct) {
  for (const int64_t tokens : {1, 3, 17, 130}) {
    for (const int64_t out : {1, 40, 64, 129}) {
      for (const int64_t in : {1, 16, 33, 100}) {
        const GuardedTensor x = filled({tokens, in}, 0.0, 1);
        const GuardedTensor w = filled({out, in}, 0.5, 2);
        const std::vector<double> x_values = values_of(x.view());
        const std::vector<double> w_values = values_of(w.view());
        std::vector<double> product;
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t o = 0; o < out; ++o) {
            double sum = 0.0;
            for (int64_t i = 0; i < in; ++i) {
              sum += x_values[static_cast<size_t>(t * in + i)] *
                     w_values[static_cast<size_t>(o * in + i)];
            }
            product.push_back(sum);
          }
        }
        const ProductReference reference(x.view(), w.view(), gpu->exec);
        const GuardedTensor y = on_gpu({tokens, out});
        set_values(y.view(), product);
        EXPECT_LE(reference.worst_error(y.view(), gpu->exec), 1.0)
            << tokens << " tokens, " << out << "x" << in;
        // The first rows alone, and with the last of their elements wrong.
        const int64_t part = (tokens + 1) / 2;
        EXPECT_LE(reference.worst_error(y.view().rows(0, part), gpu->exec), 1.0);
        product[static_cast<size_t>(part * out - 1)] += 0.25;
        set_values(y.view(), product);
        EXPECT_GT(reference.worst_error(y.view().rows(0, part), gpu->exec), 1.0);
      }
    }
  }
}

TEST_P(BenchKernel, AllowsForRoundedInputs) {
  const GuardedTensor x = on_gpu({2, 3});
  const GuardedTensor w = on_gpu({2, 3});
  const GuardedTensor y = on_gpu({2, 2});
  set_values(x.view(), std::vector<double>{1.0, 0.001, 0.0, 0.0, 0.0, -0.25});
  set_values(w.view(), std::vector<double>{0.0, -2.0, 0.0, 1.0, 0.0, 0.0});
  const ProductReference reference(x.view(), w.view(), gpu->exec);
  const auto worst = [&](double first, double last) {
    set_values(y.view(), std::vector<double>{first, 1.0, 0.0, last});
    return reference.worst_error(y.view(), gpu->exec, 0.0625);
  };
  EXPECT_LE(worst(0.12, 0.015), 1.0);  // 0.0625 * 2 * 1, and 0.0625 * 1 * 0.25
  EXPECT_GT(worst(0.13, 0.0), 1.0);
  EXPECT_GT(worst(0.0, 0.017), 1.0);
}

TEST_P(BenchKernel, NothingButARightResultPasses) {
  const GuardedTensor x = filled({5, 64}, 0.0, 1);
  const GuardedTensor w = filled({48, 64}, 0.5, 2);
  const ProductReference reference(x.view(), w.view(), gpu->exec);
  const GuardedTensor y = on_gpu({5, 48});
  const double kInfinity = std::numeric_limits<double>::infinity();
  poison(y.view(), gpu->exec);
  EXPECT_EQ(reference.worst_error(y.view(), gpu->exec), kInfinity);
  for (const double bad : {std::nan(""), kInfinity, -kInfinity}) {
    DenseWeight(w.view()).matmul(x.view(), y.view(), {}, gpu->exec);
    EXPECT_LE(reference.worst_error(y.view(), gpu->exec), 1.0);
    set_values(y.view().rows(4, 1).columns(47, 1), std::vector<double>{bad});
    EXPECT_EQ(reference.worst_error(y.view(), gpu->exec), kInfinity) << bad;
  }
  EXPECT_TRUE(y.guards_intact());
}

// Leaves the last row of the result as it was.
class UnfinishedWeight : public DenseWeight {
 public:
  using DenseWeight::DenseWeight;
  void matmul(const Tensor& x, Tensor y, const Epilogue& epilogue,
              ExecContext& ctx) const override {
    const int64_t rows = x.size(0) - 1;
    DenseWeight::matmul(x.rows(0, rows), y.rows(0, rows), epilogue, ctx);
  }
};

TEST_P(BenchKernel, AWrongWeightIsCaught) {
  const GuardedTensor x = filled({17, 96}, 0.0, 1);
  const GuardedTensor w = filled({130, 96}, 0.5, 2);
  const GuardedTensor y = on_gpu({17, 130});
  const GuardedTensor changed = on_gpu({130, 96});
  std::vector<double> values = values_of(w.view());
  values.back() += 0.5;
  set_values(changed.view(), values);
  const ProductReference reference(x.view(), w.view(), gpu->exec);

  const DenseWeight right(w.view());
  const DenseWeight wrong(changed.view());
  const UnfinishedWeight unfinished(w.view());
  const auto worst_error = [&](const std::vector<const WeightMatrix*>& copies) {
    return verify_product(
        [&](int64_t copy) {
          copies[static_cast<size_t>(copy)]->matmul(x.view(), y.view(), {}, gpu->exec);
        },
        std::ssize(copies), y.view(), reference, gpu->exec);
  };
  EXPECT_LE(worst_error({&right, &right, &right}), 1.0);
  EXPECT_GT(worst_error({&right, &wrong, &right}), 1.0);
  EXPECT_EQ(worst_error({&right, &unfinished, &right}), std::numeric_limits<double>::infinity());
}

TEST_P(BenchKernel, ReplaysRunEveryPieceInTurn) {
  const GuardedTensor x = on_gpu({3, 1024});
  std::vector<int64_t> pieces;
  const Spread times = time_replays(
      gpu->cuda, 3,
      [&](int64_t piece) {
        pieces.push_back(piece);
        fill(x.view().rows(piece, 1), 0.0, static_cast<uint64_t>(piece));
      },
      4);
  ASSERT_FALSE(pieces.empty());
  ASSERT_EQ(pieces.size() % 3, 0u);
  for (size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_EQ(pieces[i], static_cast<int64_t>(i % 3));
  }
  EXPECT_GT(times.min, 0.0);
  EXPECT_LE(times.min, times.median);
  EXPECT_LE(times.median, times.max);
  for (const double value : values_of(x.view())) {
    ASSERT_LE(std::abs(value), 1.0);
  }
}

// More than a millisecond each.
TEST_P(BenchKernel, ReplaysOfLongPiecesAreOfOneEach) {
  const GuardedTensor x = on_gpu({3, 1024});
  constexpr int kFills = 2000;
  std::vector<int64_t> pieces;
  const Spread times = time_replays(
      gpu->cuda, 3,
      [&](int64_t piece) {
        pieces.push_back(piece);
        for (int i = 0; i < kFills; ++i) {
          fill(x.view().rows(piece, 1), 0.0, static_cast<uint64_t>(i));
        }
      },
      4);
  // A round to see how long it takes, and one graph for each.
  EXPECT_EQ(pieces, (std::vector<int64_t>{0, 1, 2, 0, 1, 2}));
  EXPECT_GT(times.min, 1e-3);
  EXPECT_LT(times.max, 1.0);
}

TEST_P(BenchKernel, ReplaysOfSeveralWorksTakeTurns) {
  const GuardedTensor x = on_gpu({5, 1024});
  // One of short pieces, and one of long ones, which are a graph each.
  std::vector<int64_t> pieces[2];
  const auto work = [&](int which, int64_t count, int fills) {
    return TimedWork{.pieces = count, .run = [&pieces, &x, this, which, fills](int64_t piece) {
                       pieces[which].push_back(piece);
                       for (int i = 0; i < fills; ++i) {
                         fill(x.view().rows(piece + 3 * which, 1), 0.0, static_cast<uint64_t>(i));
                       }
                     }};
  };
  const TimedWork works[] = {work(0, 3, 1), work(1, 2, 2000)};
  const std::vector<std::vector<double>> seconds = time_replays_by_turns(gpu->cuda, works, 5);
  ASSERT_EQ(seconds.size(), 2u);
  for (size_t which = 0; which < 2; ++which) {
    EXPECT_EQ(seconds[which].size(), 5u);
    EXPECT_GT(*std::min_element(seconds[which].begin(), seconds[which].end()), 0.0);
    for (size_t i = 0; i < pieces[which].size(); ++i) {
      ASSERT_EQ(pieces[which][i], static_cast<int64_t>(i) % works[which].pieces);
    }
  }
  // Each has its own time, whatever it takes turns with.
  EXPECT_GT(median(seconds[1]), 100.0 * median(seconds[0]));
  EXPECT_TRUE(throws_error([&] { time_replays_by_turns(gpu->cuda, works, 0); }, "0 replays"));
}

struct SmallCase {
  int64_t out = 0;
  int64_t in = 0;
  int64_t tokens = 0;
  double sparsity = 0.0;
};

KernelBenchOptions small_options(DType dtype) {
  KernelBenchOptions options;
  options.formats = {"tca_bme", "cusparse"};
  options.dtype = dtype;
  options.repeat = 3;
  options.rotation_bytes = 1 << 18;
  options.device = kGpu;
  return options;
}

std::vector<KernelResult> silent_run(const KernelBenchOptions& options) {
  return bench_kernels(options, [](const KernelResult&) {});
}

// Against the fastest that is dense: by turns, unless it is dense itself.
void expect_compared(const KernelResult& result, const Spread& us,
                     const KernelComparison& compared) {
  EXPECT_NE(compared.baseline, "");
  EXPECT_NE(compared.baseline, "cublas-reduced");
  EXPECT_GT(compared.baseline_us, 0.0);
  EXPECT_DOUBLE_EQ(compared.speedup, compared.baseline_us / us.median);
  EXPECT_EQ(compared.verdict.has_value(), !result.is_dense());
  if (compared.verdict == Verdict::faster) {
    EXPECT_GT(compared.speedup, 1.0);
  }
  if (compared.verdict == Verdict::slower) {
    EXPECT_LT(compared.speedup, 1.0);
  }
  EXPECT_GT(result.library_us, 0.0);
  EXPECT_DOUBLE_EQ(compared.library_speedup, result.library_us / us.median);
}

TEST_P(BenchKernel, EveryFormatIsVerified) {
  KernelBenchOptions options = small_options(GetParam());
  std::vector<KernelResult> results;
  for (const SmallCase& c :
       {SmallCase{256, 512, 1, 0.7}, SmallCase{130, 64, 17, 0.0}, SmallCase{512, 320, 130, 0.9},
        SmallCase{64, 64, 700, 0.5}, SmallCase{256, 1024, 9, 0.6}, SmallCase{320, 512, 12, 0.5},
        SmallCase{203, 384, 17, 0.8}, SmallCase{512, 512, 24, 0.6}, SmallCase{192, 640, 33, 0.5},
        SmallCase{640, 192, 48, 0.7}}) {
    options.shapes = {{c.out, c.in}};
    options.tokens = {c.tokens};
    options.sparsities = {c.sparsity};
    std::vector<std::string> delivered;
    for (KernelResult& result :
         bench_kernels(options, [&](const KernelResult& r) { delivered.push_back(r.format); })) {
      results.push_back(std::move(result));
    }
    EXPECT_EQ(delivered, (std::vector<std::string>{"cublas", "cublaslt", "cublas-reduced", "dense",
                                                   "tca_bme", "cusparse"}));
  }
  ASSERT_EQ(results.size(), 10u * 6u);
  for (const KernelResult& result : results) {
    SCOPED_TRACE(fmt::format("{} {} {}x{}, {} tokens, sparsity {}: {}", result.format,
                             result.algorithm, result.out, result.in, result.tokens,
                             result.sparsity, result.note));
    EXPECT_TRUE(result.verified);
    const bool reduced = result.format == "cublas-reduced";
    if (!reduced) {
      EXPECT_LE(result.worst_error, 1.0);
    }
    EXPECT_EQ(result.note.find("for information") != std::string::npos, reduced);
    EXPECT_GT(result.encoded_bytes, 0);
    EXPECT_GT(result.us.min, 0.0);
    EXPECT_LE(result.us.min, result.us.median);
    EXPECT_LE(result.us.median, result.us.max);
    EXPECT_GT(result.read_gb_per_s, 0.0);
    EXPECT_GT(result.fraction_of_read_ceiling, 0.0);
    EXPECT_GT(result.tflops, 0.0);
    EXPECT_EQ(result.is_dense(), result.format != "tca_bme" && result.format != "cusparse");
    const bool ours = result.format == "tca_bme";
    ASSERT_EQ(result.overlapped_us.has_value(), ours || result.format == "dense");
    expect_compared(result, result.us, result.compared);
    if (result.overlapped_us) {
      EXPECT_GT(result.overlapped_us->min, 0.0);
      expect_compared(result, *result.overlapped_us, result.overlapped_compared);
    } else {
      EXPECT_EQ(result.overlapped_compared.baseline, "");
      EXPECT_EQ(result.overlapped_compared.speedup, 0.0);
      EXPECT_FALSE(result.overlapped_compared.verdict);
    }
    if (ours) {
      EXPECT_TRUE(result.algorithm.starts_with("decode ") ||
                  result.algorithm.starts_with("expand ") ||
                  result.algorithm.starts_with("wgmma "));
    }
    if (result.is_dense()) {
      EXPECT_EQ(result.fraction_of_dense, 1.0);
    }
  }
}

// The codes of every f16 and bf16 that is not beyond what FP8 has, and those that are not.
TEST_P(BenchKernel, RoundsToFp8) {
  std::vector<double> numbers;
  for (int bits = 0; bits < 1 << 16; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float number = GetParam() == DType::f16 ? to_float(Half{half}) : to_float(BFloat16{half});
    if (std::isfinite(number)) {
      numbers.push_back(static_cast<double>(number));
    }
  }
  const auto count = static_cast<int64_t>(numbers.size());
  const GuardedTensor x = on_gpu({1, count});
  const GuardedTensor codes(DType::u8, {1, count}, Layout::contiguous, kGpu);
  set_values(x.view(), numbers);
  encode_fp8_cuda(x.view(), codes.view(), gpu->exec);
  round_to_fp8_cuda(x.view(), gpu->exec);
  gpu->cuda.synchronize();
  const std::vector<double> rounded = values_of(x.view());
  std::vector<uint8_t> found(numbers.size());
  copy_bytes({}, found.data(), kGpu, codes.view().raw(), count);
  using quantization::F8Values;
  const auto scale = static_cast<double>(kFp8Scale);
  for (size_t i = 0; i < numbers.size(); ++i) {
    const double expected = F8Values::nearest(numbers[i] / scale);
    ASSERT_EQ(rounded[i], expected * scale) << numbers[i];
    const auto code = static_cast<uint8_t>(F8Values::code_of(expected));
    ASSERT_EQ(found[i] & 0x7f, code & 0x7f) << numbers[i];
    if (expected != 0.0) {
      ASSERT_EQ(found[i], code) << numbers[i];
    }
  }
  EXPECT_TRUE(throws_error([&] { encode_fp8_cuda(x.view(), x.view(), gpu->exec); }, "the codes"));
}

TEST_P(BenchKernel, Fp8BesideNarrowValues) {
  KernelBenchOptions options = small_options(GetParam());
  options.formats = {"tca_bme"};
  options.tokens = {1, 16, 17, 64};
  options.sparsities = {0.5, 0.8};
  const bool has_fp8 = cuda_state(gpu->exec).compute_capability >= 89;
  for (const char* values : {"i8", "i4"}) {
    options.records = values;
    for (const auto& [out, in] : {std::pair<int64_t, int64_t>{256, 512}, {320, 2048}, {70, 130}}) {
      options.shapes = {{out, in}};
      const std::vector<KernelResult> results = silent_run(options);
      int fp8 = 0;
      int ceilings = 0;
      for (const KernelResult& result : results) {
        SCOPED_TRACE(fmt::format("{} {} {}x{}, {} tokens: {}", result.format, result.algorithm,
                                 result.out, result.in, result.tokens, result.note));
        if (result.format == "int4-ceiling") {
          ceilings += 1;
          EXPECT_TRUE(result.computed);
          EXPECT_GT(result.us.median, 0.0);
        } else if (result.format == "cublaslt-fp8") {
          fp8 += 1;
          EXPECT_TRUE(result.is_dense());
          EXPECT_NE(result.note, "");
          if (!has_fp8) {
            EXPECT_FALSE(result.verified);
            EXPECT_NE(result.note.find("compute capability 8.9"), std::string::npos);
          } else if (in % 16 == 0 && out % 16 == 0) {
            EXPECT_TRUE(result.verified);
          }
          if (result.verified) {
            EXPECT_NE(result.note.find("rounded to e4m3"), std::string::npos);
            EXPECT_EQ(result.encoded_bytes, out * in);
            EXPECT_EQ(result.fraction_of_dense, 0.5);
            EXPECT_LE(result.worst_error, 8.0);
            EXPECT_GT(result.us.median, 0.0);
            EXPECT_NE(result.compared.baseline, "cublaslt-fp8");
            EXPECT_DOUBLE_EQ(result.compared.speedup,
                             result.compared.baseline_us / result.us.median);
            EXPECT_FALSE(result.compared.verdict);
          } else {
            EXPECT_EQ(result.us.median, 0.0);
          }
        } else {
          EXPECT_TRUE(result.verified);
          EXPECT_NE(result.compared.baseline, "cublaslt-fp8");
        }
      }
      EXPECT_EQ(fp8, 4);
      EXPECT_EQ(ceilings, 4);
    }
  }
}

TEST_P(BenchKernel, EveryFormatIsVerifiedWithEveryPattern) {
  KernelBenchOptions options = small_options(GetParam());
  options.shapes = {{520, 1100}};
  options.tokens = {1, 8, 33};
  options.sparsities = {0.5, 0.8};
  for (const char* pattern :
       {"uniform", "rows:0.5", "rows:2", "columns:1", "outliers:0.02", "dense-blocks:0.05"}) {
    options.patterns = {parse_zero_pattern(pattern).value()};
    for (const KernelResult& result : silent_run(options)) {
      SCOPED_TRACE(fmt::format("{}, {}, {} tokens, sparsity {}: {}", pattern, result.format,
                               result.tokens, result.sparsity, result.note));
      EXPECT_TRUE(result.verified);
      expect_compared(result, result.us, result.compared);
      if (result.overlapped_us) {
        expect_compared(result, *result.overlapped_us, result.overlapped_compared);
      }
    }
  }
}

TEST_P(BenchKernel, ASparseFormatIsComparedWithTheFastestThatIsDenseWithEqualLaunches) {
  KernelBenchOptions options = small_options(GetParam());
  options.formats = {"tca_bme"};
  options.shapes = {{256, 512}, {128, 128}};
  options.tokens = {1, 16};
  options.sparsities = {0.5, 0.9};
  options.patterns = {{}, parse_zero_pattern("rows:0.5").value()};
  const std::vector<KernelResult> results = silent_run(options);
  // What is dense once for a shape and tokens, tca_bme with all zeros.
  ASSERT_EQ(results.size(), 2u * 2u * (4u + 2u * 2u));
  for (const KernelResult& result : results) {
    const double kInfinity = std::numeric_limits<double>::infinity();
    double ordinary = kInfinity;
    double overlapped = kInfinity;
    double library = kInfinity;
    std::string ordinary_name;
    std::string overlapped_name;
    for (const KernelResult& other : results) {
      if (!other.is_dense() || other.format == "cublas-reduced" || other.out != result.out ||
          other.tokens != result.tokens) {
        continue;
      }
      if (other.us.median < ordinary) {
        ordinary = other.us.median;
        ordinary_name = other.format;
      }
      const double us = other.overlapped_us.value_or(other.us).median;
      if (us < overlapped) {
        overlapped = us;
        overlapped_name = other.format;
      }
      library = other.format != "dense" ? std::min(library, other.us.median) : library;
    }
    EXPECT_EQ(result.compared.baseline, ordinary_name);
    EXPECT_EQ(result.library_us, library);
    if (result.overlapped_us) {
      EXPECT_EQ(result.overlapped_compared.baseline, overlapped_name);
    }
    if (result.is_dense()) {  // a sparse one has it measured again
      EXPECT_EQ(result.compared.baseline_us, ordinary);
    }
  }
}

TEST_P(BenchKernel, CandidatesAreAllProposalsAndNoneTwice) {
  const GuardedTensor w = filled({512, 1024}, 0.0, 1);
  const GuardedTensor all_x = on_gpu({256, 1024});
  const GuardedTensor all_y = on_gpu({256, 512});
  const CudaContext::State& cuda = gpu->cuda.state();
  const auto operands_of = [&](int64_t tokens, PartialSums sums) {
    return GemmOperands{.x = all_x.view().rows(0, tokens),
                        .w = w.view(),
                        .bias = {},
                        .y = all_y.view().rows(0, tokens),
                        .relu = false,
                        .partial_sums = sums};
  };
  for (const int64_t tokens : {1, 7, 8, 9, 12, 17, 24, 33, 48, 130}) {
    for (const PartialSums sums : {PartialSums::f32, PartialSums::any}) {
      const GemmOperands operands = operands_of(tokens, sums);
      const std::vector<BlasPlan> candidates = blas_candidates(cuda, operands);
      SCOPED_TRACE(fmt::format("{} tokens, {} candidates", tokens, candidates.size()));
      EXPECT_FALSE(candidates.empty());
      std::vector<BlasPlan> known;
      for (const BlasPlan& plan : candidates) {
        EXPECT_TRUE(is_possible(cuda, operands, plan));
        EXPECT_NE(description_of(plan), "");
        add_new_plan(plan, known);
      }
      EXPECT_EQ(known.size(), candidates.size()) << "one comes twice";
      // For the calls themselves, for the bucket that the engine tunes, and for 8.
      for (const int64_t more : {tokens, token_bucket(tokens), std::max<int64_t>(tokens, 8)}) {
        for (const BlasPlan& plan : heuristic_plans(cuda, operands_of(more, sums), kMaxProposals)) {
          if (is_possible(cuda, operands, plan)) {
            add_new_plan(plan, known);
          }
        }
      }
      EXPECT_EQ(known.size(), candidates.size()) << "some are missing";
    }
  }
}

TEST_P(BenchKernel, TheChoiceOfCublasLtIsKept) {
  const GuardedTensor w = filled({256, 512}, 0.0, 1);
  const GuardedTensor x = filled({12, 512}, 0.0, 2);
  const GuardedTensor y = on_gpu({12, 256});
  GemmOperands operands{.x = x.view(), .w = w.view(), .bias = {}, .y = y.view()};
  const Tensor weights[] = {w.view()};
  TuneCache cache;
  const BlasPlan plan = tuned_blas_plan(operands, weights, cache, gpu->exec);
  // Choices of the engine, or without these, do not take its place.
  const int64_t tokens[] = {12};
  EXPECT_EQ(tune_gemm({.weights = weights, .epilogue = {}, .y = GetParam(), .tokens = tokens},
                      cache, gpu->exec),
            1);
  operands.partial_sums = PartialSums::any;
  tuned_blas_plan(operands, weights, cache, gpu->exec);
  operands.partial_sums = PartialSums::f32;
  const BlasPlan again = tuned_blas_plan(operands, weights, cache, gpu->exec);
  std::vector<BlasPlan> plans{plan};
  add_new_plan(again, plans);
  EXPECT_EQ(plans.size(), 1u);
}

TEST_P(BenchKernel, CopiesOfAWeightAreEqualAndApart) {
  const GuardedTensor w = filled({192, 320}, 0.6, 3);
  TuneCache cache;
  FormatContender contender("tca_bme", input_of(w.view(), cache));
  ASSERT_GT(contender.copies(), 3);
  EXPECT_TRUE(contender.overlaps_launches());
  for (int64_t copy = 0; copy < contender.copies(); ++copy) {
    const GuardedTensor expanded = on_gpu({192, 320});
    contender.weight(copy).expand({.begin = 0, .count = 192}, expanded.view(), gpu->exec);
    gpu->cuda.synchronize();
    EXPECT_TRUE(same_bits(expanded.view(), w.view())) << copy;
    EXPECT_EQ(contender.weight(copy).bytes(), contender.bytes());
  }
}

// What was chosen for one kind is not taken for the other.
TEST_P(BenchKernel, KernelsAreTunedForEachKindOfLaunches) {
  const GuardedTensor w = filled({192, 320}, 0.6, 3);
  TuneCache cache;
  FormatContender contender("tca_bme", input_of(w.view(), cache));
  const WeightMatrix* const weight = &contender.weight(0);
  constexpr int64_t kTokens[] = {8};
  const auto measured_for = [&](Launches launches) {
    ExecContext ctx = contender.context();
    ctx.launches = launches;
    return weight->tune({.alike = {&weight, 1}, .epilogue = {}, .y = GetParam(), .tokens = kTokens},
                        cache, ctx);
  };
  contender.tune(GetParam(), 8, Launches::ordinary);
  EXPECT_EQ(measured_for(Launches::ordinary), 0);
  EXPECT_GE(measured_for(Launches::overlapping), 1);
  EXPECT_EQ(measured_for(Launches::overlapping), 0);
  EXPECT_EQ(measured_for(Launches::ordinary), 0);
}

TEST_P(BenchKernel, WantOfMemoryIsAResult) {
  KernelBenchOptions options;
  options.shapes = {{1 << 20, 1 << 22}, {64, 64}};
  options.tokens = {1};
  options.sparsities = {0.0};
  options.formats = {"dense"};
  options.dtype = GetParam();
  options.repeat = 1;
  options.rotation_bytes = 0;
  options.device = kGpu;
  const std::vector<KernelResult> results = silent_run(options);
  ASSERT_EQ(results.size(), 8u);  // cuBLAS, cuBLASLt, both with reduced sums, and dense
  for (size_t i = 0; i < results.size(); ++i) {
    const bool fits = i >= 4;
    EXPECT_EQ(results[i].verified, fits) << results[i].note;
    EXPECT_EQ(results[i].note.find("out of memory") != std::string::npos, !fits);
    EXPECT_EQ(results[i].us.median > 0.0, fits);
  }
}

TEST_P(BenchKernel, InvalidOptionsAreRefused) {
  KernelBenchOptions good;
  good.shapes = {{8, 8}};
  good.tokens = {1};
  good.sparsities = {0.5};
  good.dtype = GetParam();
  good.device = kGpu;
  const auto refused = [&](auto&& change, std::string_view part) {
    KernelBenchOptions options = good;
    change(options);
    return throws_error([&] { silent_run(options); }, part);
  };
  EXPECT_TRUE(
      refused([](auto& o) { o.formats = {"coo"}; },
              "unknown format 'coo'; on cuda:0 use cublas, cublaslt, cublas-reduced, dense, "
              "tiled_csl, tca_bme, general_sparse, cusparse"));
  EXPECT_TRUE(refused([](auto& o) { o.dtype = DType::f32; }, "f32"));
  EXPECT_TRUE(refused([](auto& o) { o.shapes = {{8, 0}}; }, "8x0"));
  EXPECT_TRUE(refused([](auto& o) { o.tokens = {0}; }, "0 tokens"));
  EXPECT_TRUE(refused([](auto& o) { o.sparsities = {1.5}; }, "1.5"));
  EXPECT_TRUE(refused([](auto& o) { o.repeat = 0; }, "0 replays"));
}

// Records of 4 and of 8 chunks, and with bits for pairs, which the paper's decoding does not know;
// edges within a tile; one and two tiles of tokens.
TEST(BenchAblation, WhatComputesAProductIsVerified) {
  if (cuda_device_count() == 0) {
    GTEST_SKIP() << "there is no CUDA device";
  }
  KernelBenchOptions options = small_options(DType::f16);
  options.formats = {"tca_bme"};
  options.shapes = {{320, 512}, {203, 387}};
  options.tokens = {1, 8, 11, 16};
  options.sparsities = {0.0, 0.6, 0.7, 0.9, 1.0};
  std::vector<AblationResult> results;
  bench_ablation(options, [&](const AblationResult& result) { results.push_back(result); });
  ASSERT_EQ(results.size(), 2u * 4u * 5u * 5u);
  const bool computes_product[] = {true, true, false, false, true};
  for (size_t i = 0; i < results.size(); ++i) {
    const AblationResult& result = results[i];
    SCOPED_TRACE(fmt::format("{} x {}, {} zeros, {} tokens, {}: {}", result.out, result.in,
                             result.sparsity, result.tokens, result.variant, result.note));
    EXPECT_TRUE(result.measured);
    EXPECT_EQ(result.computes_product, computes_product[i % 5]);
    EXPECT_GT(result.us.min, 0.0);
    EXPECT_GT(result.read_gb_per_s, 0.0);
    EXPECT_GT(result.speedup, 0.0);
    EXPECT_GE(result.library_speedup, result.speedup);
    EXPECT_DOUBLE_EQ(result.fraction_of_ours, result.us.median / results[i / 5 * 5].us.median);
    const bool paper = i % 5 == 1;
    if (!paper || result.sparsity < 0.8) {
      EXPECT_EQ(result.encoded_bytes, results[i / 5 * 5].encoded_bytes);
    }
  }
}

// Records of one and of several pieces, rows of x that no load of several elements fits, edges
// within a tile, several rows of tiles for a warp and several warps for a row; one and two tiles of
// tokens.
TEST(BenchAblation, WhatComputesAProductByTilesIsVerified) {
  if (cuda_device_count() == 0) {
    GTEST_SKIP() << "there is no CUDA device";
  }
  KernelBenchOptions options = small_options(DType::f16);
  options.formats = {"tiled_csl"};
  options.shapes = {{320, 512}, {203, 387}, {4096, 2048}};
  options.tokens = {1, 8, 11, 16};
  options.sparsities = {0.0, 0.6, 0.9, 1.0};
  std::vector<AblationResult> results;
  bench_ablation(options, [&](const AblationResult& result) { results.push_back(result); });
  const std::vector<bool> computes_product{true, false, false, false, true, true, true};
  const size_t variants = computes_product.size();
  ASSERT_EQ(results.size(), 3u * 4u * 4u * variants);
  for (size_t i = 0; i < results.size(); ++i) {
    const AblationResult& result = results[i];
    const AblationResult& ours = results[i / variants * variants];
    SCOPED_TRACE(fmt::format("{} x {}, {} zeros, {} tokens, {}: {}", result.out, result.in,
                             result.sparsity, result.tokens, result.variant, result.note));
    EXPECT_TRUE(result.measured);
    EXPECT_EQ(result.computes_product, computes_product[i % variants]);
    EXPECT_GT(result.us.min, 0.0);
    EXPECT_GT(result.speedup, 0.0);
    EXPECT_DOUBLE_EQ(result.fraction_of_ours, result.us.median / ours.us.median);
    const bool words = i % variants >= 5;
    if (!words) {
      EXPECT_EQ(result.encoded_bytes, ours.encoded_bytes);
    } else if (result.sparsity == 0.6) {
      EXPECT_GT(result.encoded_bytes, ours.encoded_bytes);
    }
  }
}

TEST(BenchAblation, WhatItHasNoKernelsForIsRefused) {
  const auto refused = [](const KernelBenchOptions& options, const char* why) {
    return throws_error([&] { bench_ablation(options, [](const AblationResult&) {}); }, why);
  };
  KernelBenchOptions options = small_options(DType::f16);
  options.tokens = {1, 17};
  for (const char* format : {"tca_bme", "tiled_csl"}) {
    options.formats = {format};
    EXPECT_TRUE(refused(options, "for up to 16 tokens, not 17"));
  }
  EXPECT_TRUE(refused(small_options(DType::f16), "not of tca_bme,cusparse"));
  EXPECT_TRUE(refused(small_options(DType::bf16), "in f16, not in bf16"));
}

TEST_P(BenchKernel, LayersOfAModel) {
  BenchModelArgs model;
  model.model.model = data("models/fable-llama-relu-8m").string();
  model.model.device = "cuda";
  model.model.dtype = std::string(name_of(GetParam()));
  model.model.weight_format = "tca_bme";
  LayerBenchOptions options;
  options.tokens = {1, 17};
  options.repeat = 2;
  options.rotation_bytes = 1 << 18;
  for (const Sums sums : {Sums::fastest, Sums::batch_invariant}) {
    options.sums = sums;
    const std::vector<LayerResult> results =
        bench_layers(options, open_layers(model, {.max_requests = 1}), [](const LayerResult&) {});
    ASSERT_EQ(results.size(), 4u * 2u);
    for (const LayerResult& result : results) {
      EXPECT_TRUE(result.verified) << result.name << ": " << result.note;
      EXPECT_EQ(result.format, "tca_bme");
      EXPECT_GT(result.density, 0.99);
      EXPECT_GT(result.us.median, 0.0);
      EXPECT_GT(result.dense_us, 0.0);
      EXPECT_NE(result.baseline, "");
      EXPECT_TRUE(result.verdict);
      EXPECT_GT(result.library_us, 0.0);
      EXPECT_FALSE(result.algorithm.empty());
    }
  }
}

TEST_P(BenchKernel, ReadBandwidth) {
  for (const int64_t bytes : {int64_t{1}, (int64_t{20} << 20) + 48}) {
    EXPECT_GT(measure_read_bandwidth(kGpu, bytes), 0.0);
  }
}

}  // namespace
}  // namespace sparsellm
