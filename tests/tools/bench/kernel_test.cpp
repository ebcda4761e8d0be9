// sparsellm-bench kernel on the CPU: the measuring of products, their summary and their tables.

#include "tools/bench/kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "sparse/dense/dense.h"
#include "sparse/general_sparse/format/layout.h"
#include "tests/testing/compare.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/guarded_tensor.h"
#include "tests/testing/tensor_values.h"
#include "tests/testing/throws_error.h"
#include "tools/bench/call_timer.h"
#include "tools/bench/cpu_clock.h"
#include "tools/bench/dense_baseline.h"
#include "tools/bench/format_contender.h"
#include "tools/bench/kernel_report.h"
#include "tools/bench/kernel_summary.h"
#include "tools/bench/product_meter.h"
#include "tools/bench/verify_product.h"

namespace sparsellm {
namespace {

using nlohmann::json;
using namespace sparsellm::testing;

KernelBenchOptions small_options() {
  KernelBenchOptions options;
  options.shapes = {{70, 130}};
  options.tokens = {1, 3};
  options.sparsities = {0.5, 0.9};
  options.formats = {"tca_bme", "tiled_csl"};
  options.repeat = 2;
  options.rotation_bytes = 1 << 16;
  return options;
}

TEST(KernelBench, EveryFormatIsVerified) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    KernelBenchOptions options = small_options();
    options.dtype = dtype;
    std::vector<std::string> delivered;
    // What is dense with the first sparsity alone.
    const std::vector<std::string> formats{"dense",     "dense",     "tca_bme", "tca_bme",
                                           "tiled_csl", "tiled_csl", "tca_bme", "tca_bme",
                                           "tiled_csl", "tiled_csl"};
    const std::vector<KernelResult> results =
        bench_kernels(options, [&](const KernelResult& r) { delivered.push_back(r.format); });
    ASSERT_EQ(results.size(), formats.size());
    ASSERT_EQ(delivered.size(), results.size());
    for (size_t i = 0; i < results.size(); ++i) {
      const KernelResult& result = results[i];
      SCOPED_TRACE(result.format + ": " + result.note);
      EXPECT_EQ(delivered[i], result.format);
      EXPECT_EQ(result.format, formats[i]);
      EXPECT_EQ(result.sparsity, i < 6 ? 0.5 : 0.9);
      EXPECT_EQ(result.is_dense(), i < 2);
      EXPECT_TRUE(result.verified);
      EXPECT_LE(result.worst_error, 1.0);
      EXPECT_GT(result.us.min, 0.0);
      EXPECT_LE(result.us.min, result.us.median);
      EXPECT_LE(result.us.median, result.us.max);
      EXPECT_FALSE(result.overlapped_us);
      EXPECT_GT(result.read_gb_per_s, 0.0);
      if (result.is_dense()) {
        EXPECT_EQ(result.encoded_bytes, 70 * 130 * 2);
        EXPECT_EQ(result.fraction_of_dense, 1.0);
        // It is the only one, and takes no turns with itself.
        EXPECT_EQ(result.compared.speedup, 1.0);
        EXPECT_FALSE(result.compared.verdict);
      } else {
        EXPECT_TRUE(result.compared.verdict);
      }
      EXPECT_EQ(result.compared.baseline, "dense");
      EXPECT_DOUBLE_EQ(result.compared.speedup, result.compared.baseline_us / result.us.median);
      // There is no library here, and one kind of launches.
      EXPECT_EQ(result.library_us, 0.0);
      EXPECT_EQ(result.compared.library_speedup, 0.0);
      EXPECT_EQ(result.overlapped_compared.baseline, "");
      EXPECT_EQ(result.overlapped_compared.speedup, 0.0);
    }
  }
}

TEST(KernelBench, ErrorsAndCyclesAreReported) {
  KernelBenchOptions options = small_options();
  options.threads = 2;
  double worst_error = 0.0;
  for (const KernelResult& result : bench_kernels(options, [](const KernelResult&) {})) {
    worst_error = std::max(worst_error, result.worst_error);
    const double elements = static_cast<double>(result.out * result.in);
    const double cycles = result.us.median * 1e-6 * 2 * measure_cpu_clock();
    EXPECT_GT(result.cycles_per_element * elements, 0.4 * cycles);
    EXPECT_LT(result.cycles_per_element * elements, 2.5 * cycles);
  }
  EXPECT_GT(worst_error, 0.0);
}

TEST(KernelBench, TokenCountsThatAreNoPowersOfTwo) {
  KernelBenchOptions options = small_options();
  options.shapes = {{33, 70}};
  options.tokens = {9, 12, 17, 24, 33, 48};
  options.sparsities = {0.6};
  for (const KernelResult& result : bench_kernels(options, [](const KernelResult&) {})) {
    EXPECT_TRUE(result.verified) << result.format << ", " << result.tokens << ": " << result.note;
    EXPECT_GT(result.compared.speedup, 0.0);
  }
}

// All of which multiply by the same matrix, and take turns with what is dense, which is measured
// alone with the first sparsity and pattern.
TEST(KernelBench, EveryFormatTakesEveryPattern) {
  KernelBenchOptions options = small_options();
  options.patterns = {{}, *parse_zero_pattern("rows:1"), *parse_zero_pattern("dense-blocks:0.1")};
  const std::vector<KernelResult> results = bench_kernels(options, [](const KernelResult&) {});
  ASSERT_EQ(results.size(), 2u + 3u * 2u * 2u * 2u);
  size_t next = 0;
  const auto expect = [&](const char* format, double sparsity, const ZeroPattern& pattern) {
    for (const int64_t tokens : options.tokens) {
      const KernelResult& result = results[next++];
      SCOPED_TRACE(fmt::format("{} {} {}: {}", format, sparsity, to_string(pattern), result.note));
      EXPECT_EQ(result.format, format);
      EXPECT_EQ(result.pattern, pattern);
      EXPECT_EQ(result.sparsity, sparsity);
      EXPECT_EQ(result.tokens, tokens);
      EXPECT_TRUE(result.verified);
      EXPECT_EQ(result.compared.baseline, "dense");
      EXPECT_EQ(result.compared.verdict.has_value(), !result.is_dense());
      EXPECT_DOUBLE_EQ(result.compared.speedup, result.compared.baseline_us / result.us.median);
    }
  };
  expect("dense", options.sparsities.front(), options.patterns.front());
  for (const ZeroPattern& pattern : options.patterns) {
    for (const double sparsity : options.sparsities) {
      expect("tca_bme", sparsity, pattern);
      expect("tiled_csl", sparsity, pattern);
    }
  }
}

// Once for a shape and after what is dense, whose figures it changes nothing of.
TEST(KernelBench, NarrowValuesHaveTheTimeOfInt4BesideThem) {
  KernelBenchOptions options = small_options();
  options.formats = {"tca_bme"};
  for (const char* values : {"i8", "f8", "i4:32"}) {
    options.records = values;
    const std::vector<KernelResult> results = bench_kernels(options, [](const KernelResult&) {});
    std::vector<std::string> formats;
    formats.reserve(results.size());
    for (const KernelResult& result : results) {
      formats.push_back(result.format);
    }
    EXPECT_EQ(formats, (std::vector<std::string>{"dense", "dense", "int4-ceiling", "int4-ceiling",
                                                 "tca_bme", "tca_bme", "tca_bme", "tca_bme"}));
    for (size_t i = 2; i < 4; ++i) {
      const KernelResult& result = results[i];
      SCOPED_TRACE(fmt::format("{}: {}", values, result.note));
      EXPECT_EQ(result.tokens, options.tokens[i - 2]);
      EXPECT_TRUE(result.computed);
      EXPECT_FALSE(result.verified);
      EXPECT_TRUE(result.has_times());
      EXPECT_TRUE(result.is_dense());
      EXPECT_EQ(result.encoded_bytes, 4693);  // 70 * 130 * 4.125 / 8 = 4692.2
      EXPECT_NEAR(result.fraction_of_dense, 4.125 / 16, 1e-3);
      EXPECT_GT(result.us.median, 0.0);
      EXPECT_EQ(result.us.min, result.us.max);
      EXPECT_DOUBLE_EQ(result.read_gb_per_s * 1e3 * result.us.median, 4693.0);
      EXPECT_EQ(result.fraction_of_read_ceiling, 1.0);
      EXPECT_EQ(result.tflops, 0.0);
      EXPECT_EQ(result.compared.baseline, "dense");
      EXPECT_EQ(result.compared.baseline_us, results[i - 2].us.median);
      EXPECT_DOUBLE_EQ(result.compared.speedup, result.compared.baseline_us / result.us.median);
      EXPECT_FALSE(result.compared.verdict);
      EXPECT_TRUE(result.note.starts_with("computed, not measured: 4.125 bits a weight"));
    }
    for (size_t i = 4; i < results.size(); ++i) {
      EXPECT_TRUE(results[i].verified) << results[i].note;
      EXPECT_EQ(results[i].compared.baseline, "dense");
    }
    for (const KernelSummary& row : summarize_kernels(results)) {
      EXPECT_EQ(row.format, "tca_bme");
    }
  }
  options.records = "size";
  for (const KernelResult& result : bench_kernels(options, [](const KernelResult&) {})) {
    EXPECT_NE(result.format, "int4-ceiling");
  }
}

TEST(DenseBaseline, WhatHasFewerBitsIsNoBaseline) {
  EXPECT_TRUE(is_narrow_dense("cublaslt-fp8"));
  EXPECT_TRUE(is_narrow_dense("int4-ceiling"));
  EXPECT_FALSE(is_narrow_dense("cublaslt"));
  EXPECT_FALSE(is_baseline("cublaslt-fp8"));
  EXPECT_FALSE(is_baseline("int4-ceiling"));
  EXPECT_TRUE(is_baseline("cublaslt"));
  EXPECT_FALSE(is_library_baseline("cublaslt-fp8"));
  EXPECT_EQ(dense_int4_bytes(8192, 28672), int64_t{8192} * 28672 / 64 * 33);
  EXPECT_EQ(dense_int4_bytes(1, 1), 1);
  EXPECT_TRUE(throws_error([] { dense_int4_bytes(int64_t{1} << 40, int64_t{1} << 30); }, "int4"));
}

TEST(ProductOperands, MatricesHaveTheirPattern) {
  ProductMeter meter({}, 1);
  const OwnedTensor matrix = random_matrix({.rows = 96,
                                            .columns = 256,
                                            .dtype = DType::f32,
                                            .sparsity = 0.9,
                                            .pattern = *parse_zero_pattern("outliers:0.0625"),
                                            .key = 9},
                                           meter.context());
  const std::vector<double> values = values_of(matrix.view);
  int64_t dense = 0;
  for (size_t column = 0; column < 256; ++column) {
    int64_t nonzeros = 0;
    for (size_t row = 0; row < 96; ++row) {
      nonzeros += values[row * 256 + column] != 0.0 ? 1 : 0;
    }
    dense += nonzeros == 96 ? 1 : 0;
  }
  EXPECT_EQ(dense, 16);
}

TEST(KernelBench, InvalidOptionsAreRefused) {
  const auto refused = [&](auto&& change, std::string_view part) {
    KernelBenchOptions options = small_options();
    change(options);
    return throws_error([&] { bench_kernels(options, [](const KernelResult&) {}); }, part);
  };
  EXPECT_TRUE(refused([](auto& o) { o.formats = {"cublas"}; },
                      "unknown format 'cublas'; on cpu use dense, tiled_csl, tca_bme"));
  EXPECT_TRUE(refused([](auto& o) { o.dtype = DType::f32; }, "f32"));
  EXPECT_TRUE(refused([](auto& o) { o.shapes = {{8, 0}}; }, "8x0"));
  EXPECT_TRUE(refused([](auto& o) { o.tokens = {0}; }, "0 tokens"));
  EXPECT_TRUE(refused([](auto& o) { o.sparsities = {1.5}; }, "1.5"));
  EXPECT_TRUE(refused([](auto& o) { o.repeat = 0; }, "0 replays"));
  EXPECT_TRUE(refused([](auto& o) { o.patterns = {*parse_zero_pattern("outliers:0.2")}; },
                      "no pattern outliers:0.2: a share of 0.2"));
  EXPECT_TRUE(refused([](auto& o) { o.layout = to_text(general_sparse::Layout()); },
                      "a layout is for the format general_sparse, which is not among"));
  EXPECT_TRUE(refused(
      [](auto& o) {
        o.formats = {"general_sparse"};
        o.layout = "fast";
      },
      "layout: expected 'positions=', found 'fast'"));
  EXPECT_TRUE(refused(
      [](auto& o) {
        o.formats = {"tiled_csl"};
        o.records = "size";
      },
      "records are of the format tca_bme, which is not among"));
  EXPECT_TRUE(refused(
      [](auto& o) {
        o.formats = {"tca_bme"};
        o.records = "fast";
      },
      "they are for speed or size"));
  for (const char* values : {"i4", "f8"}) {
    EXPECT_TRUE(refused(
        [&](auto& o) {
          o.formats = {"tca_bme", "dense_i8"};
          o.records = values;
        },
        fmt::format("the format dense_i8 does not hold values of {}", values)));
  }
  EXPECT_TRUE(refused(
      [](auto& o) {
        o.formats = {"dense_i8", "dense_i4"};
      },
      "the format dense_i4 does not hold values of i8, which the others"));
  EXPECT_TRUE(refused(
      [](auto& o) {
        o.formats = {"dense_i8"};
        o.records = "size";
      },
      "records are of the format tca_bme, which is not among"));
}

// What is dense, bitmaps and formats that always round have the same values.
TEST(KernelBench, DenseNarrowFormatsAreVerified) {
  for (const auto& [format, values] :
       {std::pair{"dense_i8", ""}, {"dense_i8", "i8"}, {"dense_i4", ""}, {"dense_i4", "i4:32"}}) {
    KernelBenchOptions options = small_options();
    options.formats = {"tca_bme", format};
    options.records = values;
    const std::vector<KernelResult> results = bench_kernels(options, [](const KernelResult&) {});
    for (const KernelResult& result : results) {
      EXPECT_TRUE(result.has_times()) << result.format << ": " << result.note;
    }
    EXPECT_TRUE(std::ranges::any_of(
        results, [&](const KernelResult& result) { return result.format == format; }));
  }
}

// Leaves the last row of the result as it was, or adds to the first element, or fails.
class BrokenKernel : public BoundKernel {
 public:
  enum class Fault : uint8_t { unfinished, wrong, fails };
  BrokenKernel(Fault fault, const Tensor& weight, const Tensor& x, const Tensor& y,
               ExecContext& ctx)
      : fault_(fault), weight_(weight), x_(x), y_(y), ctx_(ctx) {}

  std::string algorithm(Launches) const override { return "broken"; }
  void enqueue(int64_t, Launches) override {
    require(fault_ != Fault::fails, "no such kernel");
    const int64_t rows = x_.size(0) - (fault_ == Fault::unfinished ? 1 : 0);
    weight_.matmul(x_.rows(0, rows), y_.rows(0, rows), {}, ctx_);
    if (fault_ == Fault::wrong) {
      y_.row<float>(0)[0] += 0.25f;
    }
  }

 private:
  Fault fault_;
  DenseWeight weight_;
  Tensor x_;
  Tensor y_;
  ExecContext& ctx_;
};

class BrokenContender : public Contender {
 public:
  BrokenContender(BrokenKernel::Fault fault, const ContenderInput& input)
      : fault_(fault), weight_(input.weight), ctx_(input.ctx) {}
  int64_t copies() const override { return 2; }
  int64_t bytes() const override { return weight_.bytes(); }
  std::vector<std::unique_ptr<BoundKernel>> bind(const Tensor& x, const Tensor& y) override {
    std::vector<std::unique_ptr<BoundKernel>> kernels;
    kernels.push_back(std::make_unique<BrokenKernel>(fault_, weight_, x, y, ctx_));
    return kernels;
  }

 private:
  BrokenKernel::Fault fault_;
  Tensor weight_;
  ExecContext& ctx_;
};

TEST(ProductMeter, NothingButARightResultPasses) {
  ProductMeter meter({}, 2);
  const OwnedTensor weight =
      random_matrix({.rows = 33, .columns = 65, .dtype = DType::bf16, .sparsity = 0.5, .key = 4},
                    meter.context());
  const ProductOperands operands(weight.view, 5, 1, meter.context());
  const auto measure = [&](BrokenKernel::Fault fault) {
    BrokenContender contender(fault, meter.input(operands, 0));
    return meter.measure(contender, operands, 5);
  };
  MeasuredProduct product = measure(BrokenKernel::Fault::unfinished);
  EXPECT_FALSE(product.verified);
  EXPECT_EQ(product.worst_error, std::numeric_limits<double>::infinity());
  product = measure(BrokenKernel::Fault::wrong);
  EXPECT_FALSE(product.verified);
  EXPECT_GT(product.worst_error, 1.0);
  EXPECT_NE(product.note.find("wrong result"), std::string::npos) << product.note;
  product = measure(BrokenKernel::Fault::fails);
  EXPECT_FALSE(product.verified);
  EXPECT_EQ(product.note, "broken: no such kernel");

  BrokenContender contender(BrokenKernel::Fault::wrong, meter.input(operands, 0));
  product = meter.time_unverified(contender, operands, 3);
  EXPECT_FALSE(product.verified);
  EXPECT_GT(product.us.median, 0.0);
  EXPECT_EQ(product.algorithm, "broken");
  EXPECT_EQ(product.note, "");
  BrokenContender failing(BrokenKernel::Fault::fails, meter.input(operands, 0));
  product = meter.time_unverified(failing, operands, 3);
  EXPECT_FALSE(product.verified);
  EXPECT_EQ(product.us.median, 0.0);
  EXPECT_EQ(product.note, "no such kernel");
}

// Nothing is measured on a device that is lost, and there is no note in place of a time.
class LostContender : public BrokenContender {
 public:
  explicit LostContender(const ContenderInput& input)
      : BrokenContender(BrokenKernel::Fault::wrong, input) {}
  std::vector<std::unique_ptr<BoundKernel>> bind(const Tensor&, const Tensor&) override {
    throw DeviceLost("the device is lost");
  }
};

TEST(ProductMeter, ALostDeviceIsNoNote) {
  ProductMeter meter({}, 1);
  const OwnedTensor weight =
      random_matrix({.rows = 33, .columns = 65, .dtype = DType::bf16, .sparsity = 0.5, .key = 4},
                    meter.context());
  const ProductOperands operands(weight.view, 5, 1, meter.context());
  LostContender lost(meter.input(operands, 0));
  EXPECT_THROW(meter.measure(lost, operands, 5), DeviceLost);
  EXPECT_THROW(meter.time_unverified(lost, operands, 5), DeviceLost);
  FormatContender dense("dense", meter.input(operands, 0));
  EXPECT_THROW(meter.measure(dense, operands, 5, {.ordinary = &lost, .overlapping = nullptr}),
               DeviceLost);
}

// One of several algorithms: the product, `times` times over; 0 fails.
class SlowKernel : public BoundKernel {
 public:
  SlowKernel(std::string algorithm, int times, const Tensor& weight, const Tensor& x,
             const Tensor& y, ExecContext& ctx)
      : algorithm_(std::move(algorithm)), times_(times), weight_(weight), x_(x), y_(y), ctx_(ctx) {}
  std::string algorithm(Launches) const override { return algorithm_; }
  void enqueue(int64_t, Launches) override {
    require(times_ > 0, "not for this shape");
    for (int i = 0; i < times_; ++i) {
      weight_.matmul(x_, y_, {}, ctx_);
    }
  }

 private:
  std::string algorithm_;
  int times_;
  DenseWeight weight_;
  Tensor x_;
  Tensor y_;
  ExecContext& ctx_;
};

class SeveralKernels : public Contender {
 public:
  using Algorithms = std::vector<std::pair<const char*, int>>;
  SeveralKernels(Algorithms algorithms, const ContenderInput& input)
      : algorithms_(std::move(algorithms)), weight_(input.weight), ctx_(input.ctx) {}
  int64_t copies() const override { return 1; }
  int64_t bytes() const override { return weight_.bytes(); }
  std::vector<std::unique_ptr<BoundKernel>> bind(const Tensor& x, const Tensor& y) override {
    std::vector<std::unique_ptr<BoundKernel>> kernels;
    for (const auto& [name, times] : algorithms_) {
      kernels.push_back(std::make_unique<SlowKernel>(name, times, weight_, x, y, ctx_));
    }
    return kernels;
  }

 private:
  Algorithms algorithms_;
  Tensor weight_;
  ExecContext& ctx_;
};

TEST(ProductMeter, TakesTheFastestAlgorithmThatIsRight) {
  ProductMeter meter({}, 1);
  const OwnedTensor weight =
      random_matrix({.rows = 33, .columns = 65, .dtype = DType::bf16, .sparsity = 0.5, .key = 4},
                    meter.context());
  const ProductOperands operands(weight.view, 5, 1, meter.context());
  const auto measure = [&](const SeveralKernels::Algorithms& algorithms) {
    SeveralKernels contender(algorithms, meter.input(operands, 0));
    return meter.measure(contender, operands, 5);
  };
  using Algorithms = SeveralKernels::Algorithms;
  for (const Algorithms& algorithms :
       {Algorithms{{"slow", 40}, {"none", 0}, {"fast", 1}, {"slower", 50}},
        Algorithms{{"none", 0}, {"fast", 1}, {"slow", 40}}}) {
    const MeasuredProduct product = measure(algorithms);
    EXPECT_TRUE(product.verified) << product.note;
    EXPECT_EQ(product.algorithm, "fast");
    EXPECT_EQ(product.overlapped_algorithm, "");
    EXPECT_EQ(product.note, "none: not for this shape");
    EXPECT_LE(product.worst_error, 1.0);
  }
  const MeasuredProduct none = measure({{"one", 0}, {"", 0}});
  EXPECT_FALSE(none.verified);
  EXPECT_EQ(none.note, "one: not for this shape; not for this shape");
}

// One kernel for ordinary launches, and another for overlapping ones, which is right or not.
class TwoKernels : public BoundKernel {
 public:
  TwoKernels(bool right, const Tensor& weight, const Tensor& x, const Tensor& y, ExecContext& ctx)
      : right_(right), weight_(weight), x_(x), y_(y), ctx_(ctx) {}

  std::string algorithm(Launches launches) const override {
    return launches == Launches::ordinary ? "one" : "other";
  }
  void enqueue(int64_t copy, Launches launches) override {
    weight_.matmul(x_, y_, {}, ctx_);
    if (!right_ && launches == Launches::overlapping && copy == 0) {
      y_.row<float>(0)[0] += 0.25f;
    }
  }

 private:
  bool right_;
  DenseWeight weight_;
  Tensor x_;
  Tensor y_;
  ExecContext& ctx_;
};

class TwoKernelContender : public Contender {
 public:
  TwoKernelContender(bool right, const ContenderInput& input)
      : right_(right), weight_(input.weight), ctx_(input.ctx) {}
  int64_t copies() const override { return 3; }
  int64_t bytes() const override { return weight_.bytes(); }
  bool overlaps_launches() const override { return true; }
  std::vector<std::unique_ptr<BoundKernel>> bind(const Tensor& x, const Tensor& y) override {
    std::vector<std::unique_ptr<BoundKernel>> kernels;
    kernels.push_back(std::make_unique<TwoKernels>(right_, weight_, x, y, ctx_));
    return kernels;
  }

 private:
  bool right_;
  Tensor weight_;
  ExecContext& ctx_;
};

TEST(ProductMeter, EachKindOfLaunchesHasItsKernel) {
  ProductMeter meter({}, 2);
  const OwnedTensor weight =
      random_matrix({.rows = 33, .columns = 65, .dtype = DType::bf16, .sparsity = 0.5, .key = 4},
                    meter.context());
  const ProductOperands operands(weight.view, 5, 1, meter.context());
  TwoKernelContender right(true, meter.input(operands, 0));
  MeasuredProduct product = meter.measure(right, operands, 5);
  EXPECT_TRUE(product.verified) << product.note;
  EXPECT_EQ(product.algorithm, "one");
  EXPECT_EQ(product.overlapped_algorithm, "other");
  ASSERT_TRUE(product.overlapped.has_value());
  EXPECT_GT(product.overlapped->median, 0.0);
  // The last replay alone would not tell: it is of another copy.
  TwoKernelContender wrong(false, meter.input(operands, 0));
  product = meter.measure(wrong, operands, 5);
  EXPECT_FALSE(product.verified);
  EXPECT_GT(product.worst_error, 1.0);
  EXPECT_TRUE(product.note.starts_with("wrong result: the worst error is ")) << product.note;
}

TEST(ProductMeter, TakesTurnsWithTheOpponentOfSuchLaunches) {
  ProductMeter meter({}, 3);
  const OwnedTensor weight =
      random_matrix({.rows = 33, .columns = 65, .dtype = DType::bf16, .sparsity = 0.5, .key = 4},
                    meter.context());
  const ProductOperands operands(weight.view, 5, 1, meter.context());
  TwoKernelContender contender(true, meter.input(operands, 0));
  FormatContender dense("dense", meter.input(operands, 1 << 14));
  MeasuredProduct product = meter.measure(contender, operands, 5);
  EXPECT_FALSE(product.turns || product.overlapped_turns);
  product = meter.measure(contender, operands, 5, {.ordinary = &dense, .overlapping = nullptr});
  EXPECT_TRUE(product.verified) << product.note;
  ASSERT_TRUE(product.turns);
  EXPECT_FALSE(product.overlapped_turns);
  EXPECT_EQ(product.turns->time.median, product.us.median);
  EXPECT_GT(product.turns->baseline.min, 0.0);
  product = meter.measure(contender, operands, 5, {.ordinary = nullptr, .overlapping = &dense});
  EXPECT_FALSE(product.turns);
  ASSERT_TRUE(product.overlapped_turns);
  EXPECT_EQ(product.overlapped_turns->time.median, product.overlapped->median);
  EXPECT_EQ(product.note, "");
}

TEST(ProductMeter, AWrongOpponentIsNone) {
  ProductMeter meter({}, 2);
  const OwnedTensor weight =
      random_matrix({.rows = 33, .columns = 65, .dtype = DType::bf16, .sparsity = 0.5, .key = 4},
                    meter.context());
  const ProductOperands operands(weight.view, 5, 1, meter.context());
  FormatContender contender("tca_bme", meter.input(operands, 0));
  using Fault = BrokenKernel::Fault;
  for (const auto& [fault, why] :
       {std::pair(Fault::unfinished, "wrong result"), std::pair(Fault::wrong, "wrong result"),
        std::pair(Fault::fails, "no such kernel")}) {
    BrokenContender broken(fault, meter.input(operands, 0));
    const MeasuredProduct product =
        meter.measure(contender, operands, 5, {.ordinary = &broken, .overlapping = nullptr});
    EXPECT_TRUE(product.verified);
    EXPECT_GT(product.us.median, 0.0);
    EXPECT_FALSE(product.turns);
    EXPECT_NE(product.note.find("not compared with dense: "), std::string::npos) << product.note;
    EXPECT_NE(product.note.find(why), std::string::npos) << product.note;
  }
  const MeasuredProduct product = meter.measure(contender, operands, 5, {.problem = "no memory"});
  EXPECT_TRUE(product.verified);
  EXPECT_EQ(product.note, "not compared with dense: no memory");
  // Nor is what is measured right because its opponent is.
  FormatContender dense("dense", meter.input(operands, 0));
  TwoKernelContender wrong(false, meter.input(operands, 0));
  EXPECT_FALSE(
      meter.measure(wrong, operands, 5, {.ordinary = &dense, .overlapping = &dense}).verified);
}

// A contender whose sums are less precise may be further from the reference, up to its own limit.
class LessPreciseContender : public BrokenContender {
 public:
  LessPreciseContender(double limit, const ContenderInput& input)
      : BrokenContender(BrokenKernel::Fault::wrong, input), limit_(limit) {}
  double error_limit() const override { return limit_; }

 private:
  double limit_;
};

TEST(ProductMeter, ErrorsUpToTheLimitOfAContender) {
  ProductMeter meter({}, 2);
  const OwnedTensor weight =
      random_matrix({.rows = 33, .columns = 65, .dtype = DType::bf16, .sparsity = 0.5, .key = 4},
                    meter.context());
  const ProductOperands operands(weight.view, 5, 1, meter.context());
  LessPreciseContender lenient(1e9, meter.input(operands, 0));
  const MeasuredProduct product = meter.measure(lenient, operands, 5);
  EXPECT_TRUE(product.verified) << product.note;
  EXPECT_GT(product.worst_error, 1.0);  // which the report shows
  LessPreciseContender strict(product.worst_error / 2.0, meter.input(operands, 0));
  EXPECT_FALSE(meter.measure(strict, operands, 5).verified);
}

MeasuredProduct product_of(double us, std::optional<double> overlapped, bool verified = true) {
  MeasuredProduct product;
  product.verified = verified;
  product.us = {.median = us, .min = us, .max = us};
  if (overlapped) {
    product.overlapped = Spread{.median = *overlapped, .min = *overlapped, .max = *overlapped};
  }
  return product;
}

TEST(DenseTimes, TheBestOfAnyKindWithEqualLaunches) {
  const DenseTimes::Cell cell{.out = 64, .in = 32, .tokens = 8};
  const auto name = [&](const DenseTimes& times, Launches launches) {
    const auto best = times.best(cell, launches);
    return best ? best->contender : "none";
  };
  DenseTimes times;
  EXPECT_EQ(name(times, Launches::ordinary), "none");
  EXPECT_FALSE(times.best_library(cell));
  times.add("cublas", cell, product_of(11.0, {}));
  times.add("cublaslt", cell, product_of(10.0, {}));
  times.add("cublas-reduced", cell, product_of(1.0, {}));
  times.add("dense", cell, product_of(10.5, 9.0));
  EXPECT_EQ(name(times, Launches::ordinary), "cublaslt");
  EXPECT_EQ(name(times, Launches::overlapping), "dense");
  EXPECT_EQ(times.best(cell, Launches::overlapping)->us, 9.0);
  EXPECT_EQ(times.best_library(cell)->us, 10.0);
  // What is not right does not count, nor what is of another shape or number of tokens.
  times.add("cublas", cell, product_of(5.0, {}, false));
  times.add("cublas", {.out = 64, .in = 32, .tokens = 9}, product_of(5.0, {}));
  times.add("cublas", {.out = 32, .in = 64, .tokens = 8}, product_of(5.0, {}));
  EXPECT_EQ(times.best_library(cell)->contender, "cublaslt");
  // Our own counts with ordinary launches too.
  times.add("dense", cell, product_of(8.0, 9.5));
  EXPECT_EQ(name(times, Launches::ordinary), "dense");
  EXPECT_EQ(times.best(cell, Launches::overlapping)->us, 9.0);
  EXPECT_EQ(times.best_library(cell)->us, 10.0);
}

TEST(FormatContender, CopiesAreEqual) {
  ProductMeter meter({}, 1);
  const OwnedTensor weight =
      random_matrix({.rows = 96, .columns = 160, .sparsity = 0.7, .key = 9}, meter.context());
  const ProductOperands operands(weight.view, 2, 1, meter.context());
  for (const char* format : {"dense", "tiled_csl", "tca_bme"}) {
    FormatContender contender(format, meter.input(operands, 1 << 17));
    ASSERT_GT(contender.copies(), 2) << format;
    EXPECT_EQ(contender.weight(1).format(), format);
    EXPECT_FALSE(contender.overlaps_launches());
    FormatContender again(contender.weight(0), meter.input(operands, 1 << 17));
    EXPECT_EQ(&again.weight(0), &contender.weight(0));
    EXPECT_EQ(again.copies(), contender.copies());
    for (FormatContender* one : {&contender, &again}) {
      for (int64_t copy = 0; copy < one->copies(); ++copy) {
        const OwnedTensor expanded = allocate_tensor({}, DType::f16, {96, 160}, "a test");
        one->weight(copy).expand({.begin = 0, .count = 96}, expanded.view, meter.context());
        EXPECT_TRUE(same_bits(expanded.view, weight.view)) << format;
      }
    }
  }
}

TEST(ProductReference, TakesWhatItIsFor) {
  CpuContext ctx(1);
  const GuardedTensor x(DType::f32, {2, 3}), w(DType::f32, {4, 3}), y(DType::f32, {2, 4});
  for (const Tensor& each : {x.view(), w.view(), y.view()}) {
    std::memset(each.raw(), 0, static_cast<size_t>(each.bytes()));
  }
  const ProductReference reference(x.view(), w.view(), ctx.exec);
  EXPECT_EQ(reference.worst_error(y.view(), ctx.exec), 0.0);
  EXPECT_EQ(reference.worst_error(y.view().rows(0, 1), ctx.exec), 0.0);
  const GuardedTensor strided(DType::f32, {2, 4}, Layout::strided);
  EXPECT_TRUE(throws_error([&] { reference.worst_error(strided.view(), ctx.exec); },
                           "the reference of a product: y is"));
  EXPECT_TRUE(throws_error([&] { reference.worst_error(x.view(), ctx.exec); },
                           "the reference of a product is [2, 4], y is [2, 3]"));
  const GuardedTensor more(DType::f32, {3, 4});
  EXPECT_TRUE(throws_error([&] { reference.worst_error(more.view(), ctx.exec); }, "y is [3, 4]"));
  EXPECT_TRUE(throws_error([&] { ProductReference(strided.view(), w.view(), ctx.exec); },
                           "the reference of a product: x is"));
  EXPECT_TRUE(throws_error([&] { ProductReference(x.view(), y.view(), ctx.exec); },
                           "the reference of a product of"));
}

// Of x, 1 and a small number, each may be off by a hundredth of 1.
TEST(ProductReference, AllowsForRoundedInputs) {
  CpuContext ctx(1);
  const GuardedTensor x(DType::f32, {1, 2}), w(DType::f32, {1, 2}), y(DType::f32, {1, 1});
  set_values(x.view(), std::vector<double>{1.0, 0.001});
  set_values(w.view(), std::vector<double>{0.0, -2.0});
  const ProductReference reference(x.view(), w.view(), ctx.exec);
  for (const double error : {-0.0199, 0.0199}) {
    set_values(y.view(), std::vector<double>{-0.002 + error});
    EXPECT_GT(reference.worst_error(y.view(), ctx.exec), 1.0);
    EXPECT_LE(reference.worst_error(y.view(), ctx.exec, 0.01), 1.0);
    set_values(y.view(), std::vector<double>{-0.002 + 1.02 * error});
    EXPECT_GT(reference.worst_error(y.view(), ctx.exec, 0.01), 1.0);
  }
}

TEST(CallTimer, CallsEveryPieceInTurn) {
  std::vector<int64_t> pieces;
  const Spread times = time_calls(
      3, [&](int64_t piece) { pieces.push_back(piece); }, 4);
  ASSERT_GT(pieces.size(), 3u);
  for (size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_EQ(pieces[i], static_cast<int64_t>(i % 3));
  }
  EXPECT_LE(times.min, times.median);
  EXPECT_LE(times.median, times.max);
  EXPECT_TRUE(throws_error(
      [] {
        time_calls(
            0, [](int64_t) {}, 1);
      },
      "0 pieces"));
}

// Verdict::equal from 0.97 to 1.03.
KernelComparison comparison(double speedup) {
  KernelComparison compared;
  if (speedup > 0.0) {
    compared.baseline = "dense";
    compared.speedup = speedup;
    compared.verdict = speedup > 1.03   ? Verdict::faster
                       : speedup < 0.97 ? Verdict::slower
                                        : Verdict::equal;
  }
  return compared;
}

KernelResult cell(const char* format, double sparsity, double speedup, double overlapped) {
  KernelResult result;
  result.out = 64;
  result.in = 32;
  result.tokens = 8;
  result.sparsity = sparsity;
  result.format = format;
  result.compared = comparison(speedup);
  result.overlapped_compared = comparison(overlapped);
  result.verified = speedup > 0.0;
  if (overlapped > 0.0) {
    result.overlapped_us = Spread{.median = 1.0, .min = 1.0, .max = 1.0};
  }
  return result;
}

TEST(KernelSummary, CountsCellsThatBeatDense) {
  std::vector<KernelResult> results{
      cell("cublas", 0.5, 1.0, 0.0),   cell("tca_bme", 0.5, 1.5, 1.6),
      cell("tca_bme", 0.5, 0.75, 1.0), cell("tca_bme", 0.5, 0.0, 0.0),
      cell("tca_bme", 0.6, 1.25, 1.5), cell("cusparse", 0.5, 0.25, 0.0),
      cell("tca_bme", 0.6, 1.02, 0.98)};
  results[2].tokens = 32;
  const std::vector<KernelSummary> rows = summarize_kernels(results);
  ASSERT_EQ(rows.size(), 6u + 2u);
  EXPECT_EQ(rows[0].format, "tca_bme");
  EXPECT_EQ(rows[0].sparsity, 0.5);
  EXPECT_EQ(rows[0].launches, Launches::ordinary);
  EXPECT_EQ(rows[0].cells, 3);
  EXPECT_EQ(rows[0].failed, 1);
  EXPECT_EQ(rows[0].faster, 1);
  EXPECT_EQ(rows[0].equal, 0);
  EXPECT_EQ(rows[0].worst_speedup, 0.75);
  EXPECT_EQ(rows[0].worst_cell, "64x32, 32 tokens, sparsity 0.5");
  EXPECT_EQ(rows[1].launches, Launches::overlapping);
  EXPECT_EQ(rows[1].faster, 1);
  EXPECT_EQ(rows[1].equal, 1);  // one that is as fast is not faster
  EXPECT_EQ(rows[1].worst_speedup, 1.0);
  EXPECT_EQ(rows[2].sparsity, 0.6);
  EXPECT_EQ(rows[2].cells, 2);
  EXPECT_EQ(rows[2].faster, 1);
  EXPECT_EQ(rows[2].equal, 1);  // nor one that is faster by less than the spread
  EXPECT_EQ(rows[3].worst_speedup, 0.98);
  EXPECT_EQ(rows[4].sparsity, std::nullopt);
  EXPECT_EQ(rows[4].cells, 5);
  EXPECT_EQ(rows[4].faster, 2);
  EXPECT_EQ(rows[4].equal, 1);
  EXPECT_EQ(rows[6].format, "cusparse");
  EXPECT_EQ(rows[6].worst_speedup, 0.25);
  EXPECT_EQ(rows[7].sparsity, std::nullopt);
  EXPECT_TRUE(summarize_kernels({}).empty());
}

TEST(KernelSummary, SummarisesEachPatternAlone) {
  std::vector<KernelResult> results{cell("tca_bme", 0.5, 1.5, 0.0), cell("tca_bme", 0.5, 0.5, 0.0),
                                    cell("tca_bme", 0.6, 2.0, 0.0)};
  results[1].pattern = {.kind = ZeroPattern::Kind::rows, .amount = 0.5};
  const std::vector<KernelSummary> rows = summarize_kernels(results);
  ASSERT_EQ(rows.size(), 5u);
  EXPECT_EQ(rows[0].worst_speedup, 1.5);
  EXPECT_EQ(rows[2].sparsity, std::nullopt);
  EXPECT_EQ(rows[2].cells, 2);
  EXPECT_EQ(rows[3].pattern, results[1].pattern);
}

// A figure that took no turns is none that can be counted.
TEST(KernelSummary, WhatWasNotComparedFailed) {
  KernelResult alone = cell("tca_bme", 0.5, 0.0, 0.0);
  alone.verified = true;
  alone.us = {.median = 1.0, .min = 1.0, .max = 1.0};
  alone.compared.library_speedup = 2.0;
  const std::vector<KernelSummary> rows = summarize_kernels(std::vector{alone});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].failed, 1);
  EXPECT_EQ(rows[0].faster, 0);
  EXPECT_EQ(rows[0].worst_speedup, 0.0);
}

std::string csv_of(const std::function<void(ReportWriter&)>& body) {
  std::string text;
  ReportWriter writer(ReportFormat::csv, {}, [&](std::string_view part) { text += part; });
  body(writer);
  writer.finish();
  return text;
}

TEST(KernelReport, Rows) {
  KernelResult result = cell("tca_bme", 0.5, 1.5, 1.0);
  result.us = {.median = 10.0, .min = 9.0, .max = 11.0};
  result.overlapped_us = Spread{.median = 7.5, .min = 7.0, .max = 8.0};
  result.compared.baseline = "cublaslt";
  result.compared.baseline_us = 15.0;
  result.library_us = 15.5;
  result.compared.library_speedup = 1.55;
  result.overlapped_compared.baseline_us = 7.5;
  result.overlapped_compared.library_speedup = 2.0;
  result.encoded_bytes = 2560;
  result.pattern = {.kind = ZeroPattern::Kind::dense_blocks, .amount = 0.01};
  result.fraction_of_dense = 0.625;
  result.algorithm = "decode";
  result.cycles_per_element = 0.25;
  const std::string text = csv_of([&](ReportWriter& writer) {
    writer.begin_table("kernel", kernel_columns());
    writer.add_row(kernel_row(result));
    KernelResult library = cell("cublas", 0.5, 0.96, 0.0);
    library.compared.verdict.reset();
    library.us = result.us;
    writer.add_row(kernel_row(library));
    result.verified = false;
    result.note = "no memory";
    writer.add_row(kernel_row(result));
    result.worst_error = 2.5;
    result.note = "wrong";
    writer.add_row(kernel_row(result));
    KernelResult computed = cell("int4-ceiling", 0.5, 4.0, 0.0);
    computed.compared.verdict.reset();
    computed.verified = false;
    computed.computed = true;
    computed.us = {.median = 5.0, .min = 5.0, .max = 5.0};
    computed.encoded_bytes = 1056;
    computed.note = "computed";
    writer.add_row(kernel_row(computed));
  });
  EXPECT_EQ(
      text,
      "# table: kernel\n"
      "out,in,tokens,sparsity,pattern,format,time_us,time_us_min,time_us_max,overlapped_us,"
      "overlapped_us_min,overlapped_us_max,baseline,baseline_us,speedup,verdict,library_us,"
      "library_speedup,overlapped_baseline,overlapped_baseline_us,overlapped_speedup,"
      "overlapped_verdict,overlapped_library_speedup,encoded_bytes,percent_of_dense,"
      "read_gb_per_s,percent_of_ceiling,cycles_per_element,tflops,worst_error,algorithm,note\n"
      "64,32,8,0.5,dense-blocks:0.01,tca_bme,10,9,11,7.5,7,8,cublaslt,15,1.5,faster,15.5,"
      "1.55,dense,7.5,1,equal,2,2560,62.5,0,0,0.25,0,0,decode,\n"
      "64,32,8,0.5,uniform,cublas,10,9,11,,,,dense,,0.96,,,,,,,,,0,0,0,0,,0,0,,\n"
      "64,32,8,0.5,dense-blocks:0.01,tca_bme,,,,,,,,,,,,,,,,,,,,,,,,,decode,"
      "NOT VERIFIED: no memory\n"
      "64,32,8,0.5,dense-blocks:0.01,tca_bme,,,,,,,,,,,,,,,,,,,,,,,,2.5,decode,"
      "NOT VERIFIED: wrong\n"
      "64,32,8,0.5,uniform,int4-ceiling,5,5,5,,,,dense,,4,,,,,,,,,1056,0,0,0,,,,,computed\n");
}

TEST(KernelReport, SummaryOfSparseFormatsAlone) {
  EXPECT_EQ(csv_of([](ReportWriter& writer) {
              report_kernel_summary(std::vector{cell("dense", 0.5, 1.0, 0.0)}, writer);
            }),
            "");
  EXPECT_EQ(csv_of([](ReportWriter& writer) {
              report_kernel_summary(
                  std::vector{cell("tca_bme", 0.5, 0.5, 1.0), cell("tca_bme", 0.5, 2.0, 3.0),
                              cell("tca_bme", 0.5, 2.0, 3.0), cell("tca_bme", 0.5, 2.0, 3.0)},
                  writer);
            }),
            "# table: summary\n"
            "format,sparsity,pattern,launches,cells,failed,faster,equal,percent_faster,"
            "worst_speedup,worst_cell\n"
            "tca_bme,0.5,uniform,ordinary,4,0,3,0,75,0.5,\"64x32, 8 tokens, sparsity 0.5\"\n"
            "tca_bme,0.5,uniform,overlapped,4,0,3,1,75,1,\"64x32, 8 tokens, sparsity 0.5\"\n");
}

}  // namespace
}  // namespace sparsellm
