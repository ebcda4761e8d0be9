// MLPs that skip neurons, against dense ones with the same weights.

#include "models/sparse_mlp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cpu/transpose.h"
#include "sparse/dense/dense.h"
#include "sparse/dense/transposed.h"
#include "tests/testing/compare.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/paged_step.h"
#include "tests/testing/random.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/tensor_values.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using Kind = Activation::Kind;

constexpr int64_t kWorkspace = 8 << 20;
constexpr float kHugeAlpha = 1e30f;

OwnedTensor copy_of(const Tensor& from) {
  OwnedTensor to = allocate_tensor({}, from.dtype(), {from.size(0), from.size(1)}, "a copy");
  set_values(to.view, values_of(from));
  return to;
}

// The weights of an MLP; its sparse and its dense form are made of them.
struct Weights {
  struct Config {
    int64_t hidden;
    int64_t neurons;
    bool gated;
    bool biases;
    DType dtype;
    Activation activation;
  };

  explicit Weights(const Config& c, uint64_t seed = 1) : config(c) {
    Random random(seed);
    const auto tensor = [&](std::initializer_list<int64_t> sizes) {
      return random.tensor(c.dtype, sizes);
    };
    if (c.gated) {
      gate.push_back(tensor({c.neurons, c.hidden}));
    }
    up.push_back(tensor({c.neurons, c.hidden}));
    down.push_back(tensor({c.hidden, c.neurons}));
    if (c.biases) {
      up_bias.push_back(tensor({(c.gated ? 2 : 1) * c.neurons}));
      down_bias.push_back(tensor({c.hidden}));
    }
  }

  // What the first rows of an MLP are computed with: the gate, or a plain MLP's up.
  const Tensor& first() const { return (config.gated ? gate : up).front().view(); }

  // Rows of these neurons, gate above up.
  OwnedTensor up_of(Range range) const {
    const int64_t halves = config.gated ? 2 : 1;
    OwnedTensor joined =
        allocate_tensor({}, config.dtype, {halves * range.count, config.hidden}, "joined rows");
    const auto take = [&](const Tensor& from, int64_t row) {
      set_values(joined.view.rows(row, range.count),
                 values_of(from.rows(range.begin, range.count)));
    };
    take(first(), 0);
    take(up.front().view(), (halves - 1) * range.count);
    return joined;
  }
  OwnedTensor up_bias_of(Range range) const {
    if (up_bias.empty()) {
      return {};
    }
    const int64_t halves = config.gated ? 2 : 1;
    OwnedTensor joined = allocate_tensor({}, config.dtype, {halves * range.count}, "a bias");
    for (int64_t half = 0; half < halves; ++half) {
      set_values(
          joined.view.rows(half * range.count, range.count),
          values_of(up_bias.front().view().rows(half * config.neurons + range.begin, range.count)));
    }
    return joined;
  }
  OwnedTensor down_bias_copy() const {
    if (down_bias.empty()) {
      return {};
    }
    OwnedTensor bias = allocate_tensor({}, config.dtype, {config.hidden}, "a bias");
    set_values(bias.view, values_of(down_bias.front().view()));
    return bias;
  }

  std::unique_ptr<Mlp> dense() const {
    const Range all{0, config.neurons};
    const Activation of_up = config.gated ? Activation() : config.activation;
    Linear whole_up{.weight = std::make_unique<DenseWeight>(up_of(all)),
                    .bias = up_bias_of(all),
                    .activation = of_up};
    Linear whole_down{.weight = std::make_unique<DenseWeight>(copy_of(down.front().view())),
                      .bias = down_bias_copy(),
                      .activation = {}};
    if (config.gated) {
      return std::make_unique<GatedMlp>(std::move(whole_up), config.activation,
                                        std::move(whole_down));
    }
    return std::make_unique<PlainMlp>(std::move(whole_up), std::move(whole_down));
  }

  // Of a range of neurons; only the first one has the bias of down.
  std::unique_ptr<SparseMlp> sparse(const SignPrediction* prediction, Range range) const {
    ThreadPool threads(1);
    SparseMlp::Parts parts{.up = up_of(range),
                           .up_bias = up_bias_of(range),
                           .down = {},
                           .down_bias = range.begin == 0 ? down_bias_copy() : OwnedTensor(),
                           .activation = config.activation};
    parts.down = allocate_tensor({}, config.dtype, {range.count, config.hidden}, "down");
    transpose(down.front().view().columns(range.begin, range.count), parts.down.view, threads);
    if (prediction != nullptr) {
      parts.signs = std::make_unique<OwnedSignWords>(
          pack_sign_words(parts.up.view.rows(0, range.count), threads));
      parts.prediction = *prediction;
    }
    return std::make_unique<SparseMlp>(std::move(parts));
  }
  std::unique_ptr<SparseMlp> sparse(const SignPrediction* prediction = nullptr) const {
    return sparse(prediction, {0, config.neurons});
  }

  Config config;
  std::vector<GuardedTensor> gate;
  std::vector<GuardedTensor> up;
  std::vector<GuardedTensor> down;
  std::vector<GuardedTensor> up_bias;
  std::vector<GuardedTensor> down_bias;
};

std::vector<Weights::Config> configs() {
  std::vector<Weights::Config> all;
  const Activation relu{.kind = Kind::relu};
  const Activation fatrelu{.kind = Kind::fatrelu, .threshold = 0.5f};
  for (const bool gated : {false, true}) {
    for (const bool biases : {false, true}) {
      all.push_back({64, 96, gated, biases, DType::f16, relu});
      all.push_back({33, 131, gated, biases, DType::f32, fatrelu});
      all.push_back({70, 17, gated, biases, DType::bf16, relu});
      all.push_back({40, 1500, gated, biases, DType::f16, fatrelu});
    }
  }
  return all;
}

std::string name_of(const Weights::Config& c) {
  return fmt::format("{}{} [{}, {}] {} {}", c.gated ? "gated" : "plain",
                     c.biases ? " with biases" : "", c.neurons, c.hidden, name_of(c.dtype),
                     name_of(c.activation.kind));
}

// The first `generated` rows of as many tokens as x has.
PagedBatch batch_of(const PagedStep& step, int64_t generated) {
  PagedBatch batch = step.batch();
  batch.generated = generated;
  return batch;
}

GuardedTensor run(const Mlp& mlp, const Tensor& x, int64_t generated, ExecContext& ctx) {
  const PagedStep step({{.pages = {}, .kv_length = x.size(0), .rows = x.size(0)}});
  GuardedTensor y(DType::f32, {x.size(0), x.size(1)});
  mlp.forward(x, batch_of(step, generated), y.view(), ctx);
  EXPECT_TRUE(y.guards_intact());
  return y;
}

TEST(SparseMlp, HasTheBitsOfTheDenseMlpIfNothingIsLost) {
  CpuContext one(1, kWorkspace);
  CpuContext three(3, kWorkspace);
  const SignPrediction keeps_all{.votes = Votes::weighted, .alpha = kHugeAlpha};
  for (const Weights::Config& config : configs()) {
    SCOPED_TRACE(name_of(config));
    const Weights weights(config);
    const std::unique_ptr<Mlp> dense = weights.dense();
    const auto exact = weights.sparse();
    const auto predict = weights.sparse(&keeps_all);
    for (const int64_t tokens : {1, 3, 17, 130}) {
      const GuardedTensor x = Random(2).tensor(DType::f32, {tokens, config.hidden});
      const GuardedTensor expected = run(*dense, x.view(), 0, one.exec);
      for (const int64_t generated : {int64_t{0}, int64_t{1}, tokens / 2, tokens}) {
        for (const SparseMlp* mlp : {exact.get(), predict.get()}) {
          EXPECT_TRUE(same_bits(run(*mlp, x.view(), generated, three.exec).view(), expected.view()))
              << tokens << ", " << generated;
        }
      }
      // In place.
      const GuardedTensor y = Random(2).tensor(DType::f32, {tokens, config.hidden});
      const PagedStep step({{.pages = {}, .kv_length = tokens, .rows = tokens}});
      exact->forward(y.view(), batch_of(step, tokens / 2 + 1), y.view(), one.exec);
      EXPECT_TRUE(same_bits(y.view(), expected.view()));
    }
    const NeuronCounts counts = exact->neuron_counts();
    EXPECT_EQ(counts.neurons, counts.rows * config.neurons);
    EXPECT_EQ(counts.skipped, 0);
    EXPECT_GT(counts.active, 0);
    EXPECT_LT(counts.active, counts.neurons);
    EXPECT_EQ(predict->neuron_counts().skipped, 0);
  }
}

// Neurons that are predicted to be zero are, and the others have the bits that they have anyway.
TEST(SparseMlp, TakesPredictedNeuronsForZero) {
  CpuContext cpu(2, kWorkspace);
  for (const Weights::Config& config : configs()) {
    SCOPED_TRACE(name_of(config));
    const Weights weights(config);
    for (const Votes votes : {Votes::sign, Votes::weighted}) {
      const SignPrediction prediction{.votes = votes, .alpha = 1.05f};
      const auto mlp = weights.sparse(&prediction);
      constexpr int64_t kTokens = 5;
      const GuardedTensor x = Random(3).tensor(DType::f32, {kTokens, config.hidden});
      const GuardedTensor y = run(*mlp, x.view(), kTokens, cpu.exec);

      const OwnedSignWords signs = pack_sign_words(weights.first(), cpu.threads);
      GuardedTensor active(DType::u8, {kTokens, config.neurons});
      predict_active(x.view(), signs.view(), prediction, active.view(), cpu.exec);
      int64_t skipped = 0;
      for (int64_t token = 0; token < kTokens; ++token) {
        // A dense MLP without the neurons that this token does not have.
        Weights masked(config);
        std::vector<double> down = values_of(masked.down.front().view());
        for (int64_t i = 0; i < config.neurons; ++i) {
          if (active.view().row<uint8_t>(token)[i] == 0) {
            ++skipped;
            for (int64_t row = 0; row < config.hidden; ++row) {
              down[static_cast<size_t>(row * config.neurons + i)] = 0.0;
            }
          }
        }
        set_values(masked.down.front().view(), down);
        const GuardedTensor expected = run(*masked.dense(), x.view().rows(token, 1), 0, cpu.exec);
        EXPECT_TRUE(same_bits(y.view().rows(token, 1), expected.view())) << token;
        EXPECT_TRUE(
            same_bits(run(*mlp, x.view().rows(token, 1), 1, cpu.exec).view(), expected.view()));
      }
      const NeuronCounts counts = mlp->neuron_counts();
      EXPECT_GT(skipped, 0);
      EXPECT_EQ(counts.rows, 2 * kTokens);
      EXPECT_EQ(counts.skipped, 2 * skipped);
      EXPECT_LE(counts.active, counts.neurons - counts.skipped);
    }
  }
}

TEST(SparseMlp, OfRangesOfNeuronsAddsUp) {
  CpuContext cpu(2, kWorkspace);
  const SignPrediction prediction{.votes = Votes::weighted, .alpha = 1.02f};
  for (const Weights::Config& config : configs()) {
    SCOPED_TRACE(name_of(config));
    const Weights weights(config);
    const GuardedTensor x = Random(4).tensor(DType::f32, {6, config.hidden});
    const int64_t first = config.neurons / 3;
    for (const SignPrediction* how : {static_cast<const SignPrediction*>(nullptr), &prediction}) {
      const auto whole = weights.sparse(how);
      const auto left = weights.sparse(how, {0, first});
      const auto right = weights.sparse(how, {first, config.neurons - first});
      for (const int64_t generated : {0, 4}) {
        const std::vector<double> expected =
            values_of(run(*whole, x.view(), generated, cpu.exec).view());
        std::vector<double> sum = values_of(run(*left, x.view(), generated, cpu.exec).view());
        const std::vector<double> more =
            values_of(run(*right, x.view(), generated, cpu.exec).view());
        for (size_t i = 0; i < sum.size(); ++i) {
          sum[i] += more[i];
          EXPECT_NEAR(sum[i], expected[i], 1e-3) << i;
        }
      }
      EXPECT_EQ(left->neuron_counts().skipped + right->neuron_counts().skipped,
                whole->neuron_counts().skipped);
      EXPECT_EQ(left->neuron_counts().active + right->neuron_counts().active,
                whole->neuron_counts().active);
    }
  }
}

TEST(SparseMlp, UsesTheWorkspaceThatItAsksFor) {
  const SignPrediction prediction;
  for (const Weights::Config& config : configs()) {
    SCOPED_TRACE(name_of(config));
    const Weights weights(config);
    for (const SignPrediction* how : {static_cast<const SignPrediction*>(nullptr), &prediction}) {
      const auto mlp = weights.sparse(how);
      for (const int64_t tokens : {1, 17, 40}) {
        const GuardedTensor x = Random(5).tensor(DType::f32, {tokens, config.hidden});
        const int64_t bytes = mlp->workspace_bytes(tokens, DType::f32, Sums::fastest);
        int64_t peak = 0;
        for (const int64_t generated : {int64_t{0}, tokens / 2, tokens}) {
          CpuContext enough(2, bytes);
          run(*mlp, x.view(), generated, enough.exec);
          peak = std::max(peak, enough.workspace.peak_bytes());
        }
        EXPECT_EQ(peak, bytes);
      }
    }
  }
}

TEST(SparseMlp, CountsForSeveralThreads) {
  const Weights weights(configs().front());
  const auto mlp = weights.sparse();
  const GuardedTensor x = Random(6).tensor(DType::f32, {3, weights.config.hidden});
  CpuContext cpu(1, kWorkspace);
  run(*mlp, x.view(), 3, cpu.exec);
  const int64_t active = mlp->neuron_counts().active;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      CpuContext own(1, kWorkspace);
      run(*mlp, x.view(), 3, own.exec);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(mlp->neuron_counts().rows, 12);
  EXPECT_EQ(mlp->neuron_counts().active, 4 * active);
}

// Of an exact gated MLP the gate is half of a joined weight, and multiplied alone.
TEST(SparseMlp, NamesAllItsProducts) {
  const SignPrediction prediction;
  for (const Weights::Config& config : configs()) {
    const Weights weights(config);
    const auto exact = weights.sparse();
    const std::vector<const Linear*> parts = exact->partial_linears();
    ASSERT_EQ(parts.size(), config.gated ? 1u : 0u);
    for (const Linear* part : parts) {
      EXPECT_EQ(part->weight->out(), config.neurons);
      EXPECT_EQ(part->weight->in(), config.hidden);
      EXPECT_EQ(part->bias.view.empty(), !config.biases);
      EXPECT_EQ(part->activation.kind, Kind::none);
    }
    EXPECT_TRUE(weights.sparse(&prediction)->partial_linears().empty());
    EXPECT_TRUE(weights.dense()->partial_linears().empty());
  }
}

// Rows by neurons take a time for each, dense products always the same.
class MadeUpMeter : public TuneMeter {
 public:
  // Which ways take turns: by neurons first.
  explicit MadeUpMeter(double seconds_of_row) : seconds_of_row_(seconds_of_row) {}

  std::string device_key() override { return "a device"; }
  void poison(const Tensor&) override {}
  Largest compare(const Tensor&, const Tensor&) override { return {}; }
  std::optional<double> seconds(const Call& call, double) override {
    call.enqueue();
    const bool is_dense = calls_++ % 2 == 1;
    return is_dense ? 1.0 : seconds_of_row_ * static_cast<double>(call.tokens);
  }
  int calls() const { return calls_; }

 private:
  double seconds_of_row_;
  int calls_ = 0;
};

TEST(SparseMlp, MeasuresItsCutOff) {
  CpuContext cpu(2, kWorkspace);
  const std::vector<int64_t> tokens{1, 2, 3, 8, 64};
  const SparseMlp::Tuning tuning{.dtype = DType::f32, .tokens = tokens};
  const SignPrediction prediction{.votes = Votes::sign};
  for (const Weights::Config& config : configs()) {
    SCOPED_TRACE(name_of(config));
    const Weights weights(config);
    for (const SignPrediction* how : {static_cast<const SignPrediction*>(nullptr), &prediction}) {
      const auto one = weights.sparse(how);
      const auto two = weights.sparse(how);
      const std::vector<SparseMlp*> alike{one.get(), two.get()};
      EXPECT_EQ(one->most_rows(), how != nullptr ? 4 : 1);
      TuneCache cache;
      MadeUpMeter meter(0.2);
      EXPECT_EQ(SparseMlp::tune(alike, tuning, meter, cache, cpu.exec), 4);  // 8 take too long
      EXPECT_EQ(one->most_rows(), 4);
      EXPECT_EQ(two->most_rows(), 4);
      EXPECT_EQ(meter.calls(), 4 * 6);
      EXPECT_EQ(one->neuron_counts().rows, 0);

      // What was measured is not measured again, by MLPs of the same shape.
      MadeUpMeter slow(2.0);
      const auto three = weights.sparse(how);
      const std::vector<SparseMlp*> other{three.get()};
      EXPECT_EQ(SparseMlp::tune(other, tuning, slow, cache, cpu.exec), 0);
      EXPECT_EQ(slow.calls(), 0);
      EXPECT_EQ(three->most_rows(), 4);
      TuneCache empty;
      EXPECT_EQ(SparseMlp::tune(other, tuning, slow, empty, cpu.exec), 1);
      EXPECT_EQ(three->most_rows(), 0);
      MadeUpMeter fast(0.001);
      TuneCache another;
      EXPECT_EQ(SparseMlp::tune(other, tuning, fast, another, cpu.exec), 5);
      EXPECT_EQ(three->most_rows(), 64);
    }
  }
}

TEST(SparseMlp, TakesNothingElseFromACacheForItsCutOff) {
  CpuContext cpu(2, kWorkspace);
  const std::vector<int64_t> tokens{1};
  const SparseMlp::Tuning tuning{.dtype = DType::f32, .tokens = tokens};
  const Weights weights(configs().front());
  const auto mlp = weights.sparse();
  const std::vector<SparseMlp*> mlps{mlp.get()};
  const TempDir folder;
  MadeUpMeter meter(0.2);
  const std::filesystem::path file = folder.path() / "cache.json";
  TuneCache first(file);
  EXPECT_EQ(SparseMlp::tune(mlps, tuning, meter, first, cpu.exec), 1);
  first.save();
  std::stringstream stored;
  stored << std::ifstream(file).rdbuf();
  const std::string text = stored.str();
  const std::string entry = "200000.000 us by neurons, 1000000.000 us dense";
  const size_t at = text.find(entry);
  ASSERT_NE(at, std::string::npos) << text;
  for (const char* other :
       {"", "200000.000 us", "nan us by neurons, 1.0 us dense", "-1 us by neurons, 1 us dense",
        "1 us by neurons, 0 us dense", "1 us by neurons, inf us dense",
        "1 us by neurons, 2 us dense and more", "1e999 us by neurons, 2 us dense"}) {
    folder.write("cache.json", std::string(text).replace(at, entry.size(), other));
    TuneCache cache(file);
    EXPECT_EQ(cache.problem(), "");
    EXPECT_EQ(SparseMlp::tune(mlps, tuning, meter, cache, cpu.exec), 1) << other;
    EXPECT_EQ(mlp->most_rows(), 1);
  }
  folder.write("cache.json",
               std::string(text).replace(at, entry.size(), "3 us by neurons, 2 us dense"));
  TuneCache cache(file);
  EXPECT_EQ(SparseMlp::tune(mlps, tuning, meter, cache, cpu.exec), 0);
  EXPECT_EQ(mlp->most_rows(), 0);
}

TEST(SparseMlp, RefusesShapesThatDoNotFit) {
  const auto make = [](int64_t up, int64_t up_columns, int64_t down, int64_t down_columns) {
    SparseMlp::Parts parts{.activation = {.kind = Kind::relu}};
    parts.up.view = Tensor(nullptr, DType::f16, {up, up_columns}, {});
    parts.down.view = Tensor(nullptr, DType::f16, {down, down_columns}, {});
    return SparseMlp(std::move(parts)).workspace_bytes(1, DType::f32, Sums::fastest);
  };
  EXPECT_GT(make(8, 4, 8, 4), 0);
  EXPECT_GT(make(16, 4, 8, 4), 0);
  for (const auto& [up, up_columns, down, down_columns] :
       {std::tuple{8, 4, 4, 8}, {24, 4, 8, 4}, {8, 4, 8, 5}, {4, 4, 8, 4}}) {
    EXPECT_TRUE(
        throws_error([&, up = up, up_columns = up_columns, down = down,
                      down_columns = down_columns] { make(up, up_columns, down, down_columns); },
                     "activation sparsity"));
  }
}

TEST(TransposedWeight, IsTheWeight) {
  CpuContext cpu(2, kWorkspace);
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
    const GuardedTensor w = Random(7).tensor(dtype, {37, 70});
    OwnedTensor transposed = allocate_tensor({}, dtype, {70, 37}, "a transpose");
    transpose(w.view(), transposed.view, cpu.threads);
    const TransposedWeight weight(std::move(transposed));
    EXPECT_EQ(weight.format(), "dense");
    EXPECT_EQ(weight.out(), 37);
    EXPECT_EQ(weight.in(), 70);
    EXPECT_EQ(weight.dtype(), dtype);
    EXPECT_EQ(weight.bytes(), 37 * 70 * size_of(dtype));
    const GuardedTensor part(dtype, {5, 70});
    weight.expand({.begin = 30, .count = 5}, part.view(), cpu.exec);
    EXPECT_TRUE(same_bits(part.view(), w.view().rows(30, 5)));
    const GuardedTensor x = Random(8).tensor(DType::f32, {3, 70});
    const GuardedTensor y(DType::f32, {3, 37});
    const GuardedTensor expected(DType::f32, {3, 37});
    DenseWeight(w.view()).matmul(x.view(), expected.view(), {}, cpu.exec);
    const std::unique_ptr<WeightMatrix> copy = weight.copy();
    CpuContext exact(2, weight.workspace_bytes(3, Sums::fastest));
    copy->matmul(x.view(), y.view(), {}, exact.exec);
    EXPECT_TRUE(same_bits(y.view(), expected.view()));
    EXPECT_EQ(exact.workspace.peak_bytes(), weight.workspace_bytes(3, Sums::fastest));
  }
}

}  // namespace
}  // namespace sparsellm
