// sparsellm-bench mlp on the CPU: the reference of an MLP whose neurons are predicted, the shares
// of neurons that it reaches, the measuring of its parts, and its table.

#include "tools/bench/mlp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/testing/cpu_context.h"
#include "tests/testing/tensor_values.h"
#include "tests/testing/throws_error.h"
#include "tools/bench/mlp_bytes.h"
#include "tools/bench/mlp_reference.h"

namespace sparsellm {
namespace {

using nlohmann::json;
using namespace sparsellm::testing;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

MlpCase small_case(bool gated) {
  return {.shape = {.neurons = 150, .hidden = 70, .gated = gated},
          .weights = DType::f16,
          .activations = DType::f32,
          .tokens = 3,
          .votes = Votes::sign,
          .shares = {.predicted = 0.6, .zeros = 0.8},
          .seed = 5};
}

// The MLP by its definitions, in double: what the paper's votes leave of it, or the dense one.
struct NaiveMlp {
  std::vector<double> active;  // [tokens, neurons], 0 or 1
  std::vector<double> h;
  std::vector<double> y;  // [tokens, hidden]
};

NaiveMlp naive_mlp(const MlpCase& mlp, const MlpReference& reference, bool predicts) {
  CpuContext cpu;
  const MlpShape& shape = mlp.shape;
  const auto values = [](const OwnedTensor& x) { return values_of(x.view); };
  const std::vector<double> up = values(random_up(shape, mlp.weights, mlp.seed, cpu.exec));
  const std::vector<double> down = values(random_down(shape, mlp.weights, mlp.seed, cpu.exec));
  const std::vector<double> x =
      values(random_tokens(shape, mlp.tokens, mlp.activations, mlp.seed, cpu.exec));
  const int64_t d = shape.hidden;
  NaiveMlp naive;
  naive.y.resize(static_cast<size_t>(mlp.tokens * d));
  for (int64_t t = 0; t < mlp.tokens; ++t) {
    for (int64_t i = 0; i < shape.neurons; ++i) {
      double negative = 0.0;
      double positive = 0.0;
      double gate = 0.0;
      double linear = 0.0;
      for (int64_t j = 0; j < d; ++j) {
        const double product =
            up[static_cast<size_t>(i * d + j)] * x[static_cast<size_t>(t * d + j)];
        (product < 0.0 ? negative : positive) += product != 0.0 ? 1.0 : 0.0;
        gate += product;
        if (shape.gated) {
          linear += up[static_cast<size_t>((shape.neurons + i) * d + j)] *
                    x[static_cast<size_t>(t * d + j)];
        }
      }
      const float scaled = reference.prediction().alpha * static_cast<float>(positive);
      const bool skipped = predicts && scaled < static_cast<float>(negative);
      const float threshold = predicts ? reference.activation().threshold : 0.0f;
      const bool zero = skipped || gate <= static_cast<double>(threshold);
      const double h = zero ? 0.0 : gate * (shape.gated ? linear : 1.0);
      naive.active.push_back(skipped ? 0.0 : 1.0);
      naive.h.push_back(h);
      for (int64_t j = 0; j < d; ++j) {
        naive.y[static_cast<size_t>(t * d + j)] += h * down[static_cast<size_t>(i * d + j)];
      }
    }
  }
  return naive;
}

OwnedTensor tensor_of(const std::vector<double>& values, int64_t rows) {
  const auto columns = static_cast<int64_t>(values.size()) / rows;
  OwnedTensor tensor = allocate_tensor({}, DType::f32, {rows, columns}, "a test");
  std::transform(values.begin(), values.end(), tensor.view.data<float>(),
                 [](double value) { return static_cast<float>(value); });
  return tensor;
}

OwnedTensor flags_of(const std::vector<double>& values, int64_t rows) {
  const auto columns = static_cast<int64_t>(values.size()) / rows;
  OwnedTensor tensor = allocate_tensor({}, DType::u8, {rows, columns}, "a test");
  std::transform(values.begin(), values.end(), tensor.view.data<uint8_t>(),
                 [](double value) { return static_cast<uint8_t>(value); });
  return tensor;
}

TEST(MlpReference, IsTheMlpByItsDefinitions) {
  for (const bool gated : {true, false}) {
    const MlpCase mlp = small_case(gated);
    ThreadPool threads(2);
    const MlpReference reference(mlp, threads);
    const NaiveMlp naive = naive_mlp(mlp, reference, true);
    EXPECT_EQ(reference.active_error(flags_of(naive.active, mlp.tokens).view), 0.0);
    EXPECT_LE(reference.h_error(tensor_of(naive.h, mlp.tokens).view), 1.0);
    EXPECT_LE(reference.y_error(tensor_of(naive.y, mlp.tokens).view), 1.0);
    EXPECT_LE(reference.down_error(tensor_of(naive.y, mlp.tokens).view), 1.0);
    const NaiveMlp dense = naive_mlp(mlp, reference, false);
    EXPECT_LE(reference.dense_y_error(tensor_of(dense.y, mlp.tokens).view), 1.0);
    // Neither is the other.
    EXPECT_GT(reference.dense_y_error(tensor_of(naive.y, mlp.tokens).view), 1.0);
    EXPECT_GT(reference.y_error(tensor_of(dense.y, mlp.tokens).view), 1.0);
    // Of fewer tokens.
    EXPECT_LE(reference.y_error(tensor_of(naive.y, mlp.tokens).view.rows(0, 1)), 1.0);
  }
}

TEST(MlpReference, FindsWhatIsWrong) {
  const MlpCase mlp = small_case(true);
  ThreadPool threads(2);
  const MlpReference reference(mlp, threads);
  const NaiveMlp naive = naive_mlp(mlp, reference, true);
  // Of the token in the middle: a flag, a neuron that is zero, and one that is lost.
  std::vector<double> flags = naive.active;
  flags[200] = 1.0 - flags[200];
  EXPECT_EQ(reference.active_error(flags_of(flags, mlp.tokens).view), kInfinity);
  for (const bool was_zero : {true, false}) {
    std::vector<double> h = naive.h;
    const auto at = std::find_if(h.begin() + 150, h.begin() + 300,
                                 [&](double value) { return (value == 0.0) == was_zero; });
    ASSERT_NE(at, h.begin() + 300);
    *at = was_zero ? 0.01 : 0.0;
    EXPECT_GT(reference.h_error(tensor_of(h, mlp.tokens).view), 1.0);
  }
  for (const double wrong : {1.01 * naive.y[100] + 0.01, std::nan("")}) {
    std::vector<double> y = naive.y;
    y[100] = wrong;
    const OwnedTensor tensor = tensor_of(y, mlp.tokens);
    EXPECT_GT(reference.y_error(tensor.view), 1.0);
    EXPECT_GT(reference.down_error(tensor.view), 1.0);
  }
}

TEST(MlpReference, ReachesTheSharesThatAreAskedFor) {
  ThreadPool threads(2);
  for (const Votes votes : {Votes::sign, Votes::weighted}) {
    for (const auto& [predicted, zeros] : std::vector<std::pair<double, double>>{
             {0.0, 0.0}, {0.0, 0.7}, {0.5, 0.5}, {0.8, 0.89}, {0.9, 0.9}, {1.0, 1.0}}) {
      MlpCase mlp = small_case(true);
      mlp.shape = {.neurons = 400, .hidden = 260};
      mlp.votes = votes;
      mlp.shares.predicted = predicted;
      mlp.shares.zeros = zeros;
      const MlpReference reference(mlp, threads);
      const MlpShares all = reference.shares(mlp.tokens);
      // One vote of 260 moves 5 % of the neurons in the middle, where most are.
      EXPECT_NEAR(all.predicted, predicted, 0.026) << predicted;
      EXPECT_NEAR(all.zeros, std::max(zeros, all.predicted), 0.001) << zeros;
      const MlpShares one = reference.shares(1);
      EXPECT_LE(one.first_union, all.first_union);
      EXPECT_LE(one.active_union, all.active_union);
      EXPECT_NEAR(static_cast<double>(one.first_union), 400.0 * (1.0 - one.predicted), 1e-6);
      EXPECT_NEAR(static_cast<double>(one.active_union), 400.0 * (1.0 - one.zeros), 1e-6);
      EXPECT_GE(static_cast<double>(all.first_union), 400.0 * (1.0 - all.predicted) - 1e-6);
    }
  }
}

TEST(MlpReference, ALargerAlphaPredictsFewer) {
  ThreadPool threads(2);
  MlpCase mlp = small_case(true);
  mlp.shape = {.neurons = 400, .hidden = 260};
  const MlpReference first(mlp, threads);
  mlp.alpha_factor = 1.1f;
  const MlpReference second(mlp, threads);
  EXPECT_FLOAT_EQ(second.prediction().alpha, 1.1f * first.prediction().alpha);
  EXPECT_LT(second.shares(3).predicted, first.shares(3).predicted - 0.1);
  EXPECT_NEAR(second.shares(3).zeros, first.shares(3).zeros, 0.001);
}

MlpBenchOptions small_options() {
  MlpBenchOptions options;
  options.shapes = {{.neurons = 150, .hidden = 70}, {.neurons = 96, .hidden = 128, .gated = false}};
  options.tokens = {1, 3};
  options.shares.predicted = 0.6;
  options.shares.zeros = 0.8;
  options.repeat = 2;
  options.rotation_bytes = 1 << 16;
  options.threads = 2;
  return options;
}

TEST(MlpBench, EveryPartIsVerified) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    MlpBenchOptions options = small_options();
    options.dtype = dtype;
    size_t delivered = 0;
    const std::vector<MlpResult> results =
        bench_mlps(options, [&](const MlpResult&) { ++delivered; });
    ASSERT_EQ(results.size(), 2U * 5U * 2U);  // shapes, parts, tokens
    EXPECT_EQ(delivered, results.size());
    for (size_t i = 0; i < results.size(); ++i) {
      const MlpResult& result = results[i];
      SCOPED_TRACE(std::string(name_of(result.part)) + ": " + result.note);
      EXPECT_EQ(result.shape, options.shapes[i / 10]);
      EXPECT_EQ(result.part, kMlpParts[i % 10 / 2]);
      EXPECT_EQ(result.tokens, i % 2 == 0 ? 1 : 3);
      EXPECT_TRUE(result.verified);
      EXPECT_EQ(result.note, "");
      EXPECT_LE(result.worst_error, 1.0);
      EXPECT_GT(result.us.min, 0.0);
      EXPECT_FALSE(result.overlapped_us);
      EXPECT_EQ(is_whole(result.part), result.compared.verdict.has_value());
      EXPECT_EQ(is_whole(result.part), result.compared.speedup > 0.0);
      EXPECT_GT(result.read_gb_per_s, 0.0);
      const int64_t row = result.shape.hidden * 2;
      const int64_t signs = result.shape.neurons * ((result.shape.hidden + 31) / 32) * 4;
      const int64_t up =
          (result.shares.first_union + (result.shape.gated ? result.shares.active_union : 0)) * row;
      const int64_t down = result.shares.active_union * row;
      const int64_t all = (result.shape.gated ? 3 : 2) * result.shape.neurons * row;
      const std::vector<int64_t> bytes{all, signs, up, down, signs + up + down};
      EXPECT_EQ(result.bytes_read, bytes[i % 10 / 2]);
      const bool predicts = result.part == MlpPart::predictor || result.part == MlpPart::ops;
      EXPECT_EQ(result.sign_bytes, predicts ? signs : 0);
      EXPECT_EQ(result.xors, predicts ? result.tokens * signs / 4 : 0);
    }
  }
}

TEST(MlpBench, NoneAndAllAreActive) {
  for (const double share : {0.0, 1.0}) {
    MlpBenchOptions options = small_options();
    options.shapes.resize(1);
    options.shares.predicted = share;
    options.shares.zeros = share;
    for (const MlpResult& result : bench_mlps(options, [](const MlpResult&) {})) {
      SCOPED_TRACE(std::string(name_of(result.part)) + ": " + result.note);
      EXPECT_TRUE(result.verified);
      EXPECT_EQ(result.shares.predicted, share);
      EXPECT_EQ(result.shares.zeros, share);
    }
  }
}

TEST(MlpBench, OptionsThatMakeNoSense) {
  const auto refused = [](auto&& change, std::string_view part) {
    MlpBenchOptions options = small_options();
    change(options);
    return throws_error([&] { check_options(options); }, part);
  };
  EXPECT_NO_THROW(check_options(small_options()));
  EXPECT_TRUE(
      refused([](MlpBenchOptions& o) { o.shares.predicted = 0.9; }, "not above the second"));
  EXPECT_TRUE(refused([](MlpBenchOptions& o) { o.shares.zeros = 1.5; }, "1.5"));
  EXPECT_TRUE(refused([](MlpBenchOptions& o) { o.shares.predicted = std::nan(""); }, "nan"));
  EXPECT_TRUE(refused([](MlpBenchOptions& o) { o.shapes[0].hidden = 0; }, "150x0 is empty"));
  EXPECT_TRUE(refused([](MlpBenchOptions& o) { o.tokens = {0}; }, "0 tokens"));
  EXPECT_TRUE(refused([](MlpBenchOptions& o) { o.repeat = 0; }, "0 replays"));
  EXPECT_TRUE(refused([](MlpBenchOptions& o) { o.dtype = DType::f32; }, "not in f32"));
}

MlpBenchOptions ablation_options() {
  MlpBenchOptions options = small_options();
  options.ablation = true;
  options.shapes.resize(1);
  options.tokens = {1};
  options.device = {.kind = Device::Kind::cuda, .index = 0};
  return options;
}

TEST(MlpAblation, OptionsThatMakeNoSense) {
  const auto refused = [](auto&& change, std::string_view part) {
    MlpBenchOptions options = ablation_options();
    change(options);
    return throws_error([&] { check_ablation(options); }, part);
  };
  EXPECT_NO_THROW(check_ablation(ablation_options()));
  EXPECT_TRUE(refused([](MlpBenchOptions& o) { o.device = {}; }, "on CUDA alone, not on cpu"));
  EXPECT_TRUE(refused([](MlpBenchOptions& o) { o.tokens = {1, 2}; }, "for one token"));
  EXPECT_TRUE(
      refused([](MlpBenchOptions& o) { o.shapes[0].gated = false; }, "150x70:plain has not"));
  MlpBenchOptions on_cpu = ablation_options();
  on_cpu.device = {};
  EXPECT_TRUE(throws_error([&] { bench_mlps(on_cpu, [](const MlpResult&) {}); }, "on CUDA alone"));
}

// What is not skipped is read: rows of up and down of neurons that turn out to be zero.
TEST(MlpAblation, BytesByVariant) {
  const MlpShape shape{.neurons = 100, .hidden = 64};
  const MlpShares shares{.first_union = 30, .active_union = 20};
  const int64_t row = 64 * 2;
  const int64_t signs = 100 * 2 * 4;
  for (const MlpAblation variant : kMlpAblations) {
    const MlpBytes bytes = bytes_of({MlpPart::ablated, variant}, shape, shares, DType::f16);
    EXPECT_EQ(bytes.read, signs + (skips_actual_zeros(variant) ? 70 : 90) * row)
        << name_of(variant);
    EXPECT_EQ(bytes.held, signs + 300 * row);
  }
  EXPECT_EQ(std::ranges::count_if(kMlpAblations, skips_actual_zeros), 3);
}

TEST(MlpAblation, TheTable) {
  const std::vector<Column> columns = mlp_ablation_columns();
  const auto factor = std::ranges::find(columns, "alpha_factor", &Column::key);
  ASSERT_NE(factor, columns.end());
  const auto at = static_cast<size_t>(factor - columns.begin());
  EXPECT_EQ(columns[at + 1].key, "part");
  MlpResult result;
  result.part = MlpPart::ablated;
  result.variant = MlpAblation::both;
  result.alpha_factor = kAblationAlphas.back();
  result.note = "no memory";
  const Row row = mlp_ablation_row(result);
  ASSERT_EQ(row.size(), columns.size());
  EXPECT_NEAR(std::get<double>(row[at]), 1.03, 1e-6);
  EXPECT_EQ(std::get<std::string>(row[at + 1]), "+KF+AS");
}

TEST(MlpBench, TheTable) {
  MlpBenchOptions options = small_options();
  options.shapes = {{.neurons = 96, .hidden = 128, .gated = false}};
  options.tokens = {2};
  std::string text;
  ReportWriter report(ReportFormat::json, {}, [&](std::string_view part) { text += part; });
  report_mlps(options, report);
  report.finish();
  const json table = json::parse(text).at("tables").at(0);
  EXPECT_EQ(table.at("name"), "mlp");
  const json& rows = table.at("rows");
  ASSERT_EQ(rows.size(), 5U);
  const json& whole = rows.at(4);
  EXPECT_EQ(whole.at("part"), "ops");
  EXPECT_EQ(whole.at("kind"), "plain");
  EXPECT_EQ(whole.at("votes"), "weighted");
  EXPECT_EQ(whole.at("neurons"), 96);
  EXPECT_EQ(whole.at("xors"), 2 * 96 * 4);
  EXPECT_EQ(whole.at("sign_bytes"), 96 * 4 * 4);
  EXPECT_GT(whole.at("speedup"), 0.0);
  EXPECT_GT(whole.at("time_us"), 0.0);
  EXPECT_TRUE(whole.at("overlapped_us").is_null());
  EXPECT_NEAR(whole.at("zeros_percent").get<double>(), 80.0, 1.0);
  EXPECT_TRUE(rows.at(0).at("xors").is_null());

  MlpResult failed;
  failed.note = "no memory";
  const Row row = mlp_row(failed);
  ASSERT_EQ(row.size(), mlp_columns().size());
  EXPECT_EQ(std::get<std::string>(row.back()), "NOT VERIFIED: no memory");
}

}  // namespace
}  // namespace sparsellm
