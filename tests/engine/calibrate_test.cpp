// The norms of the inputs of linear layers, block by block, against what a whole decoder sees.

#include "engine/calibrate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "engine/observed_weight.h"
#include "models/build_decoder.h"
#include "models/storage/stored_names.h"
#include "sparse/dense/dense.h"
#include "tests/testing/compare.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/guarded_tensor.h"
#include "tests/testing/paged_step.h"
#include "tests/testing/paths.h"
#include "tests/testing/random.h"
#include "tests/testing/reference.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/tensor_values.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using Sequences = std::vector<std::vector<int32_t>>;
using Squares = std::map<std::string, std::vector<double>>;  // by module

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A weight of a linear layer as the checkpoint holds it.
OwnedTensor stored_weight(const Checkpoint& checkpoint, const std::string& name) {
  for (std::string_view stored_name : stored_names(name)) {
    if (const StoredTensor* stored = checkpoint.find(stored_name)) {
      OwnedTensor weight = allocate_tensor({}, stored->float_dtype(name),
                                           {stored->shape.at(0), stored->shape.at(1)}, name);
      std::memcpy(weight.view.raw(), stored->bytes.data(), stored->bytes.size());
      return weight;
    }
  }
  fail("{} is not in the checkpoint", name);
}

// The same with a random half of its elements zero, always the same half.
OwnedTensor pruned_weight(const Checkpoint& checkpoint, const std::string& name) {
  OwnedTensor weight = stored_weight(checkpoint, name);
  std::vector<double> values = values_of(weight.view);
  Random random(std::accumulate(name.begin(), name.end(), uint64_t{1},
                                [](uint64_t sum, char c) { return sum * 31 + uint64_t(c); }));
  for (double& value : values) {
    value *= static_cast<double>(random.below(2));
  }
  set_values(weight.view, values);
  return weight;
}

LinearWeights original(const Checkpoint& checkpoint) {
  return [&checkpoint](const std::string& name) { return stored_weight(checkpoint, name); };
}

LinearWeights pruned(const Checkpoint& checkpoint) {
  return [&checkpoint](const std::string& name) { return pruned_weight(checkpoint, name); };
}

// The original weights, except for one element of the weight of `module`.
LinearWeights spoilt(const Checkpoint& checkpoint, const std::string& module, float value) {
  return [&checkpoint, module, value](const std::string& name) {
    OwnedTensor weight = stored_weight(checkpoint, name);
    if (name == module + ".weight") {
      std::vector<double> values = values_of(weight.view);
      values[values.size() / 2] = value;
      set_values(weight.view, values);
    }
    return weight;
  };
}

// "model.decoder.layers.3.fc1" -> 3
int64_t block_of(const std::string& module) {
  const std::string_view prefix = ".layers.";
  return std::stoll(module.substr(module.find(prefix) + prefix.size()));
}

// Adds up the squares of what goes into a weight, in the plainest way.
class RecordedWeight : public WeightMatrix {
 public:
  RecordedWeight(OwnedTensor weight, std::vector<std::string> modules, Squares& squares)
      : dense_(std::move(weight)), modules_(std::move(modules)), squares_(&squares) {}

  std::string_view format() const override { return "recorded"; }
  int64_t out() const override { return dense_.out(); }
  int64_t in() const override { return dense_.in(); }
  DType dtype() const override { return dense_.dtype(); }
  int64_t bytes() const override { return dense_.bytes(); }
  void matmul(const Tensor& x, Tensor y, const Epilogue& epilogue,
              ExecContext& ctx) const override {
    const std::vector<double> values = values_of(x);
    for (const std::string& module : modules_) {
      std::vector<double>& squares = (*squares_)[module];
      squares.resize(static_cast<size_t>(in()));
      for (size_t i = 0; i < values.size(); ++i) {
        squares[i % squares.size()] += values[i] * values[i];
      }
    }
    dense_.matmul(x, y, epilogue, ctx);
  }
  void expand(Range rows, Tensor dense, ExecContext& ctx) const override {
    dense_.expand(rows, dense, ctx);
  }
  int64_t workspace_bytes(int64_t tokens, Sums sums) const override {
    return dense_.workspace_bytes(tokens, sums);
  }
  int64_t tune(const MatmulTuning&, TuneCache&, ExecContext&) const override { return 0; }

 private:
  DenseWeight dense_;
  std::vector<std::string> modules_;
  Squares* squares_;
};

// A checkpoint whose blocks before `first_original` are pruned, with recorded inputs.
class RecordingLoader : public CheckpointLoader {
 public:
  RecordingLoader(const Checkpoint& checkpoint, int64_t first_original, Squares& squares)
      : CheckpointLoader(checkpoint, {}, std::nullopt, {}),
        checkpoint_(checkpoint),
        first_original_(first_original),
        squares_(squares) {}

  // The weights of linear layers do not come through this loader.
  void require_all_used(std::span<const std::string_view>) const override {}

 private:
  std::unique_ptr<WeightMatrix> load_weight(const Wanted& wanted) override {
    std::vector<std::string> modules;
    std::vector<double> values;
    DType dtype = DType::f32;
    for (const Wanted::Part& part : wanted.parts) {
      modules.push_back(part.name.substr(0, part.name.rfind('.')));
      const OwnedTensor weight = block_of(part.name) < first_original_
                                     ? pruned_weight(checkpoint_, part.name)
                                     : stored_weight(checkpoint_, part.name);
      const std::vector<double> rows = values_of(weight.view);
      values.insert(values.end(), rows.begin(), rows.end());
      dtype = weight.view.dtype();
    }
    OwnedTensor joined =
        allocate_tensor({}, dtype, {rows_of(wanted), wanted.stored_columns}, "a weight");
    set_values(joined.view, values);
    return std::make_unique<RecordedWeight>(std::move(joined), modules, squares_);
  }

  const Checkpoint& checkpoint_;
  int64_t first_original_;
  Squares& squares_;
};

// What a whole decoder makes of all sequences in one step.
struct Whole {
  Squares squares;
  std::unique_ptr<GuardedTensor> hidden;
};

Whole run_whole(const ModelConfig& config, const Checkpoint& checkpoint, int64_t first_original,
                const Sequences& sequences) {
  Whole whole;
  RecordingLoader weights(checkpoint, first_original, whole.squares);
  const auto decoder = build_decoder(config, weights);
  std::vector<int32_t> ids;
  std::vector<StepRequest> requests;
  int32_t pages = 0;
  for (const std::vector<int32_t>& sequence : sequences) {
    ids.insert(ids.end(), sequence.begin(), sequence.end());
    const auto length = std::ssize(sequence);
    requests.push_back({.pages = {}, .kv_length = length, .rows = length});
    for (int64_t i = 0; i < pages_for(length); ++i) {
      requests.back().pages.insert(requests.back().pages.begin(), pages++);
    }
  }
  const auto tokens = std::ssize(ids);
  CpuContext ctx(2, decoder->workspace_bytes(tokens, 0, {}, Sums::fastest));
  const KvCache kv({}, decoder->kv_shape(), pages);
  const PagedStep step(requests);
  const GuardedTensor id_tensor = i32_tensor(ids);
  whole.hidden = std::make_unique<GuardedTensor>(
      DType::f32, std::initializer_list<int64_t>{tokens, config.hidden_size});
  decoder->forward({.token_ids = id_tensor.view(), .batch = step.batch()}, kv, whole.hidden->view(),
                   ctx.exec);
  return whole;
}

::testing::AssertionResult close_to(const std::vector<float>& norms,
                                    const std::vector<double>& squares, double tolerance) {
  if (norms.size() != squares.size()) {
    return ::testing::AssertionFailure() << norms.size() << " norms, not " << squares.size();
  }
  for (size_t i = 0; i < norms.size(); ++i) {
    const double expected = std::sqrt(squares[i]);
    if (!(std::abs(norms[i] - expected) <= tolerance * expected)) {
      return ::testing::AssertionFailure()
             << "feature " << i << ": " << norms[i] << ", not " << expected;
    }
  }
  return ::testing::AssertionSuccess();
}

// The norms of one block against those of the same modules of a whole decoder.
void expect_norms(const Calibrator::Norms& norms, const Squares& squares, int64_t block) {
  size_t modules = 0;
  for (const auto& [module, expected] : squares) {
    if (block_of(module) == block) {
      ++modules;
      ASSERT_TRUE(norms.contains(module)) << module;
      EXPECT_TRUE(close_to(norms.at(module), expected, 1e-5)) << module;
    }
  }
  EXPECT_GE(modules, 6u);
  EXPECT_EQ(norms.size(), modules);
}

std::vector<int32_t> random_ids(const ModelConfig& config, int64_t count, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<int32_t>(random.below(config.vocab_size)));
  }
  return ids;
}

Sequences random_sequences(const ModelConfig& config) {
  return {random_ids(config, 21, 1), random_ids(config, 33, 2), random_ids(config, 1, 3),
          random_ids(config, 16, 4)};
}

struct Result {
  std::vector<Calibrator::Norms> norms;  // of each block
  std::vector<double> hidden;            // after the last
};

// Through all blocks, pruning each.
Result calibrate(const ModelConfig& config, const Checkpoint& checkpoint,
                 const Sequences& sequences, int thread_count) {
  ThreadPool threads(thread_count);
  Calibrator calibrator(config, checkpoint, sequences, threads);
  Result result;
  for (int64_t block = 0; block < config.num_layers; ++block) {
    result.norms.push_back(calibrator.norms(block, original(checkpoint)));
    calibrator.advance(block, pruned(checkpoint));
  }
  result.hidden = values_of(calibrator.hidden());
  return result;
}

std::string test_name(const ::testing::TestParamInfo<std::filesystem::path>& info) {
  std::string name = info.param.filename().string();
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

class Calibration : public ::testing::TestWithParam<std::filesystem::path> {
 protected:
  ModelConfig config_ = read_model_config(GetParam());
  Checkpoint checkpoint_{GetParam()};
  ThreadPool threads_{2};
};
INSTANTIATE_TEST_SUITE_P(Checkpoints, Calibration,
                         ::testing::ValuesIn(kSanitized ? tiny_checkpoints() : all_checkpoints()),
                         test_name);

TEST_P(Calibration, WithoutPruningItIsTheWholeDecoder) {
  const Sequences sequences = random_sequences(config_);
  const Whole whole = run_whole(config_, checkpoint_, 0, sequences);
  Calibrator calibrator(config_, checkpoint_, sequences, threads_);
  for (int64_t block = 0; block < config_.num_layers; ++block) {
    expect_norms(calibrator.norms(block, original(checkpoint_)), whole.squares, block);
    calibrator.advance(block, original(checkpoint_));
  }
  EXPECT_TRUE(same_bits(calibrator.hidden(), whole.hidden->view()));
}

TEST_P(Calibration, BlocksSeeTheOutputsOfPrunedOnes) {
  const Sequences sequences = random_sequences(config_);
  Calibrator calibrator(config_, checkpoint_, sequences, threads_);
  for (int64_t block = 0; block < config_.num_layers; ++block) {
    SCOPED_TRACE(block);
    const Whole whole = run_whole(config_, checkpoint_, block, sequences);
    expect_norms(calibrator.norms(block, original(checkpoint_)), whole.squares, block);
    calibrator.advance(block, pruned(checkpoint_));
  }
  const Whole whole = run_whole(config_, checkpoint_, config_.num_layers, sequences);
  EXPECT_TRUE(same_bits(calibrator.hidden(), whole.hidden->view()));
}

class TinyCalibration : public Calibration {};
INSTANTIATE_TEST_SUITE_P(Checkpoints, TinyCalibration, ::testing::ValuesIn(tiny_checkpoints()),
                         test_name);

TEST_P(TinyCalibration, DoesNotDependOnTheThreads) {
  const Sequences sequences = random_sequences(config_);
  const Result one = calibrate(config_, checkpoint_, sequences, 1);
  for (int threads : {2, 3}) {
    const Result more = calibrate(config_, checkpoint_, sequences, threads);
    EXPECT_EQ(more.norms, one.norms);
    EXPECT_EQ(more.hidden, one.hidden);
  }
}

TEST_P(TinyCalibration, SequencesAreApartAndTheirSquaresAddUp) {
  const Sequences sequences = random_sequences(config_);
  const Result together = calibrate(config_, checkpoint_, sequences, 2);
  std::vector<Squares> squares(static_cast<size_t>(config_.num_layers));
  std::vector<double> hidden;
  for (const std::vector<int32_t>& sequence : sequences) {
    const Result alone = calibrate(config_, checkpoint_, {sequence}, 2);
    hidden.insert(hidden.end(), alone.hidden.begin(), alone.hidden.end());
    for (size_t block = 0; block < squares.size(); ++block) {
      for (const auto& [module, norms] : alone.norms[block]) {
        std::vector<double>& sums = squares[block][module];
        sums.resize(norms.size());
        for (size_t i = 0; i < norms.size(); ++i) {
          sums[i] += static_cast<double>(norms[i]) * norms[i];
        }
      }
    }
  }
  EXPECT_EQ(hidden, together.hidden);
  for (size_t block = 0; block < squares.size(); ++block) {
    ASSERT_EQ(together.norms[block].size(), squares[block].size());
    for (const auto& [module, norms] : together.norms[block]) {
      EXPECT_TRUE(close_to(norms, squares[block].at(module), 1e-6)) << module;
    }
  }
}

TEST_P(TinyCalibration, NormsChangeNothing) {
  Calibrator calibrator(config_, checkpoint_, random_sequences(config_), threads_);
  const std::vector<double> before = values_of(calibrator.hidden());
  const Calibrator::Norms first = calibrator.norms(0, original(checkpoint_));
  EXPECT_EQ(values_of(calibrator.hidden()), before);
  EXPECT_EQ(calibrator.norms(0, original(checkpoint_)), first);
  calibrator.advance(0, original(checkpoint_));
  EXPECT_NE(values_of(calibrator.hidden()), before);
}

TEST_P(TinyCalibration, TakesWeightsOfAnyDTypeAndViews) {
  const Sequences sequences = random_sequences(config_);
  Calibrator calibrator(config_, checkpoint_, sequences, threads_);
  const Whole whole = run_whole(config_, checkpoint_, 0, sequences);
  std::vector<OwnedTensor> memory;
  const LinearWeights as_f32 = [&](const std::string& name) {
    const OwnedTensor stored = stored_weight(checkpoint_, name);
    memory.push_back(
        allocate_tensor({}, DType::f32, {stored.view.size(0), stored.view.size(1)}, name));
    set_values(memory.back().view, values_of(stored.view));
    return OwnedTensor{.buffer = {}, .view = memory.back().view};
  };
  expect_norms(calibrator.norms(0, as_f32), whole.squares, 0);
}

TEST_P(TinyCalibration, GoesThroughTheBlocksInOrder) {
  const LinearWeights weights = original(checkpoint_);
  Calibrator calibrator(config_, checkpoint_, {{1, 2, 3}}, threads_);
  for (int64_t block : {-1, 1, 2}) {
    EXPECT_TRUE(throws_error([&] { calibrator.norms(block, weights); },
                             fmt::format("block {} is not the next one to calibrate, which is "
                                         "block 0",
                                         block)));
    EXPECT_TRUE(throws_error([&] { calibrator.advance(block, weights); }, "which is block 0"));
  }
  calibrator.advance(0, weights);  // norms need not be requested
  EXPECT_TRUE(throws_error([&] { calibrator.norms(0, weights); }, "which is block 1"));
  for (int64_t block = 1; block < config_.num_layers; ++block) {
    calibrator.advance(block, weights);
  }
  EXPECT_TRUE(throws_error([&] { calibrator.norms(config_.num_layers, weights); },
                           fmt::format("of a model with {} layers", config_.num_layers)));
}

TEST_P(TinyCalibration, RefusesSequencesThatTheModelCannotRead) {
  const auto refused = [&](const Sequences& sequences, const std::string& part) {
    return throws_error([&] { Calibrator(config_, checkpoint_, sequences, threads_); }, part);
  };
  const auto vocabulary = static_cast<int32_t>(config_.vocab_size);
  EXPECT_TRUE(refused({}, "no tokens"));
  EXPECT_TRUE(refused({{1}, {}}, "sequence 1 to calibrate with is empty"));
  EXPECT_TRUE(refused({{1}, {1, vocabulary}},
                      fmt::format("sequence 1 to calibrate with has the token id {}", vocabulary)));
  EXPECT_TRUE(refused({{-1}}, "token id -1"));
  std::vector<int32_t> longest(static_cast<size_t>(config_.max_positions), 1);
  EXPECT_NO_THROW(Calibrator(config_, checkpoint_, {longest}, threads_));
  longest.push_back(1);
  EXPECT_TRUE(refused({longest}, fmt::format("sequence 0 to calibrate with has {} tokens, more "
                                             "than the model's context of {}",
                                             longest.size(), config_.max_positions)));
}

class Faults : public ::testing::Test {
 protected:
  static constexpr const char* kMlp = "model.layers.0.mlp.";

  std::filesystem::path directory_ = data("tiny/llama_bias");
  ModelConfig config_ = read_model_config(directory_);
  Checkpoint checkpoint_{directory_};
  ThreadPool threads_{2};
  Calibrator calibrator_{config_, checkpoint_, random_sequences(config_), threads_};
};

TEST_F(Faults, NamesBlockAndModuleOfAnInputThatIsNotFinite) {
  const Calibrator::Norms norms = calibrator_.norms(0, original(checkpoint_));
  for (float value : {kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    for (const auto& [module, reader] : {std::pair{"self_attn.v_proj", "self_attn.o_proj"},
                                         std::pair{"self_attn.o_proj", "mlp.gate_proj"},
                                         std::pair{"mlp.up_proj", "mlp.down_proj"}}) {
      const std::string prefix = "model.layers.0.";
      const LinearWeights weights = spoilt(checkpoint_, prefix + module, value);
      EXPECT_TRUE(
          throws_error([&] { calibrator_.norms(0, weights); }, "block 0: the input feature "));
      EXPECT_TRUE(throws_error([&] { calibrator_.norms(0, weights); },
                               " of " + prefix + reader + " has the norm "));
    }
  }
  EXPECT_EQ(calibrator_.norms(0, original(checkpoint_)), norms);  // nothing was lost
}

TEST_F(Faults, IsOfNoMoreUseAfterOutputsThatAreNotFinite) {
  EXPECT_TRUE(throws_error(
      [&] {
        calibrator_.advance(0, spoilt(checkpoint_, std::string(kMlp) + "down_proj", kInfinity));
      },
      "block 0: after model.layers.0.mlp.down_proj the hidden state of a token is not finite"));
  EXPECT_TRUE(throws_error([&] { calibrator_.advance(0, original(checkpoint_)); },
                           "the calibration has failed before"));
  EXPECT_TRUE(throws_error([&] { calibrator_.norms(0, original(checkpoint_)); },
                           "the calibration has failed before"));
}

TEST(ObservedWeight, HasASumForEachInput) {
  CpuContext cpu;
  const OwnedTensor w = allocate_tensor({}, DType::f32, {2, 4}, "a weight");
  std::memset(w.view.raw(), 0, static_cast<size_t>(w.view.bytes()));
  std::vector<double> squares(3);
  EXPECT_TRUE(throws_error(
      [&] {
        ObservedWeight(dense_format().load(dense_format().encode(w.view, cpu.threads),
                                           {.threads = cpu.threads}),
                       squares);
      },
      "3 sums of the inputs of a weight with 4 columns"));
}

TEST_F(Faults, NamesAWeightThatDoesNotFit) {
  const std::string name = std::string(kMlp) + "up_proj.weight";
  const auto refused = [&](const std::function<OwnedTensor(const OwnedTensor&)>& change,
                           const std::string& part) {
    const LinearWeights weights = [&](const std::string& wanted) {
      OwnedTensor weight = stored_weight(checkpoint_, wanted);
      return wanted == name ? change(weight) : std::move(weight);
    };
    return throws_error([&] { calibrator_.advance(0, weights); }, name + part);
  };
  const auto make = [](DType dtype, int64_t rows, int64_t columns) {
    OwnedTensor made = allocate_tensor({}, dtype, {rows, columns}, "a weight");
    std::memset(made.view.raw(), 0, static_cast<size_t>(made.view.bytes()));
    return made;
  };
  EXPECT_TRUE(refused(
      [&](const OwnedTensor& w) {
        return make(w.view.dtype(), w.view.size(0) + 1, w.view.size(1));
      },
      " for calibration has shape ["));
  EXPECT_TRUE(refused(
      [&](const OwnedTensor& w) { return make(w.view.dtype(), w.view.size(1), w.view.size(0)); },
      " for calibration has shape ["));
  EXPECT_TRUE(refused([](const OwnedTensor&) { return OwnedTensor{}; }, " for calibration"));
  EXPECT_TRUE(refused(
      [&](const OwnedTensor& w) { return make(DType::i32, w.view.size(0), w.view.size(1)); },
      " for calibration is no contiguous matrix of floating-point numbers"));
  EXPECT_TRUE(refused(
      [&](const OwnedTensor& w) {
        OwnedTensor wide = make(w.view.dtype(), w.view.size(0), w.view.size(1) + 1);
        wide.view = wide.view.columns(0, w.view.size(1));
        return wide;
      },
      " for calibration is no contiguous matrix"));
  EXPECT_TRUE(refused(
      [&](const OwnedTensor& w) {
        return make(w.view.dtype() == DType::f16 ? DType::bf16 : DType::f16, w.view.size(0),
                    w.view.size(1));
      },
      fmt::format(" is {}",
                  stored_weight(checkpoint_, name).view.dtype() == DType::f16 ? "bf16" : "f16")));
  calibrator_.advance(0, original(checkpoint_));  // hidden states were never touched
}

}  // namespace
}  // namespace sparsellm
