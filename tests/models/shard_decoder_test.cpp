// Decoders of several ranks, as threads, against the whole model.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/comm_threads.h"
#include "kernels/base/error.h"
#include "models/build_decoder.h"
#include "models/config.h"
#include "models/shard.h"
#include "models/weights/checkpoint_loader.h"
#include "models/weights/random_loader.h"
#include "sparse/dense/dense.h"
#include "tests/testing/compare.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/deferring_communicator.h"
#include "tests/testing/paged_step.h"
#include "tests/testing/random.h"
#include "tests/testing/reference.h"
#include "tests/testing/tensor_values.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using Mode = ActivationSparsity::Mode;
using MakeLoader = std::function<std::unique_ptr<WeightLoader>(const Shard& shard)>;

// body(rank, communicator) of all ranks, each in its thread. Throws what the first of them threw.
void on_ranks(int degree, const std::function<void(int rank, Communicator& comm)>& body) {
  const std::vector<std::unique_ptr<Communicator>> comms = make_thread_communicators(degree);
  std::vector<std::exception_ptr> errors(static_cast<size_t>(degree));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < degree; ++rank) {
    threads.emplace_back([&, rank] {
      const auto i = static_cast<size_t>(rank);
      try {
        body(rank, *comms[i]);
      } catch (const Error& error) {
        comms[i]->abort(error.what());
        errors[i] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const std::exception_ptr& error : errors) {
    if (error) {
      std::rethrow_exception(error);
    }
  }
}

struct Output {
  std::vector<double> hidden;
  std::vector<double> logits;
};

// One step of two requests, `generated` rows and others: of nine rows, and of so many.
Output run(const ModelConfig& config, WeightLoader& weights, int64_t generated,
           Communicator* comm = nullptr, int64_t second = 20) {
  const auto decoder = build_decoder(config, weights);
  const int64_t tokens = 9 + second;
  EXPECT_EQ(decoder->kv_shape().kv_heads, kv_heads(config, weights.shard()).count);
  CpuContext ctx(1, decoder->workspace_bytes(tokens, tokens, {}, Sums::fastest));
  ctx.exec.comm = comm;
  std::vector<int32_t> pages(static_cast<size_t>(pages_for(second)));
  std::iota(pages.begin(), pages.end(), 0);
  const KvCache kv({}, decoder->kv_shape(), std::ssize(pages) + 1);
  const PagedStep step({{.pages = {static_cast<int32_t>(pages.size())}, .kv_length = 9, .rows = 9},
                        {.pages = pages, .kv_length = second, .rows = second}});
  PagedBatch batch = step.batch();
  batch.generated = generated;
  Random random(5);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < tokens; ++i) {
    ids.push_back(static_cast<int32_t>(random.below(config.vocab_size)));
  }
  const GuardedTensor id_tensor = i32_tensor(ids);
  const GuardedTensor hidden(DType::f32, {tokens, config.hidden_size});
  const GuardedTensor logits(DType::f32, {tokens, config.vocab_size});
  decoder->forward({.token_ids = id_tensor.view(), .batch = batch}, kv, hidden.view(), ctx.exec);
  decoder->logits(hidden.view(), {}, logits.view(), ctx.exec);
  EXPECT_TRUE(hidden.guards_intact());
  EXPECT_TRUE(logits.guards_intact());
  return {.hidden = values_of(hidden.view()), .logits = values_of(logits.view())};
}

::testing::AssertionResult close(const std::vector<double>& got,
                                 const std::vector<double>& expected) {
  double largest = 0.0;
  double error = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::abs(expected[i]));
    const double difference = std::abs(got.at(i) - expected[i]);
    error = difference <= error ? error : difference;  // also of NaN
  }
  return error <= 2e-5 * largest ? ::testing::AssertionSuccess()
                                 : ::testing::AssertionFailure()
                                       << "an error of " << error << " where the largest is "
                                       << largest;
}

void expect_same_on_ranks(const ModelConfig& config, const MakeLoader& make, int degree,
                          int64_t generated) {
  SCOPED_TRACE(std::to_string(degree) + " ranks");
  const Output whole = run(config, *make({}), generated);
  std::vector<Output> outputs(static_cast<size_t>(degree));
  on_ranks(degree, [&](int rank, Communicator& comm) {
    outputs[static_cast<size_t>(rank)] =
        run(config, *make({.rank = rank, .degree = degree}), generated, &comm);
  });
  EXPECT_TRUE(close(outputs.front().hidden, whole.hidden));
  EXPECT_TRUE(close(outputs.front().logits, whole.logits));
  for (const Output& output : outputs) {
    EXPECT_EQ(output.hidden, outputs.front().hidden);
    EXPECT_EQ(output.logits, outputs.front().logits);
  }
}

TEST(ShardDecoder, Checkpoints) {
  for (const std::filesystem::path& directory : all_checkpoints()) {
    SCOPED_TRACE(directory.string());
    const ModelConfig config = read_model_config(directory);
    const Checkpoint checkpoint(directory);
    for (int degree = 2; degree <= 4; ++degree) {
      const auto make = [&](const Shard& shard) -> std::unique_ptr<WeightLoader> {
        return std::make_unique<CheckpointLoader>(
            checkpoint, Device{}, std::nullopt, LoadProgress(),
            WeightEncoding{.format = {}, .threads = 1}, shard);
      };
      if (why_not_shared(config, degree).empty()) {
        expect_same_on_ranks(config, make, degree, 0);
      } else {
        EXPECT_TRUE(throws_error(
            [&] { build_decoder(config, *make({.rank = 0, .degree = degree})); }, "cannot share"));
      }
    }
  }
}

// Six heads, three of keys and values, sizes that are multiples of nothing.
ModelConfig odd_config(bool opt) {
  ModelConfig config;
  config.architecture = opt ? "OPTForCausalLM" : "LlamaForCausalLM";
  config.vocab_size = 300;
  config.hidden_size = 72;
  config.intermediate_size = 200;
  config.num_layers = 2;
  config.num_heads = 6;
  config.num_kv_heads = opt ? 6 : 3;
  config.head_dim = opt ? 16 : 24;
  config.max_positions = 64;
  config.norm = opt ? ModelConfig::Norm::layer_norm : ModelConfig::Norm::rms_norm;
  config.positions = opt ? ModelConfig::Positions::learned : ModelConfig::Positions::rope;
  config.activation = {.kind = Activation::Kind::relu};
  config.gated_mlp = !opt;
  config.qkv_bias = opt;
  config.attention_out_bias = opt;
  config.mlp_bias = opt;
  return config;
}

MakeLoader random_loader(const std::string& format, double sparsity) {
  return [=](const Shard& shard) {
    return std::make_unique<RandomLoader>(
        Device{},
        RandomWeights{.dtype = DType::f16, .sparsity = sparsity, .seed = 3, .format = format},
        shard);
  };
}

TEST(ShardDecoder, OddSizesInAllFormats) {
  for (const bool opt : {false, true}) {
    const ModelConfig config = odd_config(opt);
    for (const char* format : {"dense", "tiled_csl", "tca_bme"}) {
      for (const double sparsity : {0.65, 0.79}) {
        SCOPED_TRACE(fmt::format("{} {} {}", config.architecture, format, sparsity));
        for (const int degree : {3, 6}) {  // with 6 a rank has no neurons, and no rows of the head
          expect_same_on_ranks(config, random_loader(format, sparsity), degree, 0);
        }
      }
    }
  }
  EXPECT_TRUE(throws_error(
      [&] {
        build_decoder(odd_config(false),
                      *random_loader("dense", 0.5)(Shard{.rank = 1, .degree = 2}));
      },
      "2 GPUs cannot share 3 heads of keys and values"));
}

TEST(ShardDecoder, ActivationSparsity) {
  for (const bool opt : {false, true}) {
    ModelConfig config = odd_config(opt);
    for (const Mode mode : {Mode::exact, Mode::predict}) {
      config.activation_sparsity = {.mode = mode};
      if (mode == Mode::predict) {
        config.activation_sparsity.alphas = {1.0f, std::nullopt};
      }
      for (const int degree : {3, 6}) {
        for (const int64_t generated : {0, 5, 29}) {
          SCOPED_TRACE(fmt::format("{} {} {}", config.architecture, name_of(mode), generated));
          expect_same_on_ranks(config, random_loader("dense", 0.3), degree, generated);
        }
      }
    }
  }
}

// Of a long step two halves go through the products, while the sums of the other are under way.
TEST(ShardDecoder, DeferredSums) {
  constexpr int64_t kSecond = 1100;
  for (const bool opt : {false, true}) {
    ModelConfig config = odd_config(opt);
    config.max_positions = 2048;
    for (const Mode mode : {Mode::off, Mode::predict}) {
      config.activation_sparsity = {.mode = mode};
      if (mode == Mode::predict) {
        config.activation_sparsity.alphas = {1.0f, std::nullopt};
      }
      for (const int64_t generated : {0, 3, 800}) {
        SCOPED_TRACE(fmt::format("{} {} {}", config.architecture, name_of(mode), generated));
        std::vector<Output> outputs(6);
        on_ranks(3, [&](int rank, Communicator& comm) {
          const auto loader =
              random_loader("dense", 0.3)(Shard{.rank = rank, .degree = comm.size()});
          outputs[static_cast<size_t>(rank)] = run(config, *loader, generated, &comm, kSecond);
          DeferringCommunicator deferring(comm);
          outputs[static_cast<size_t>(3 + rank)] =
              run(config, *loader, generated, &deferring, kSecond);
          EXPECT_EQ(deferring.deferred(), 2 * 2 * config.num_layers);
        });
        for (const Output& output : outputs) {
          EXPECT_EQ(output.hidden, outputs.front().hidden);
          EXPECT_EQ(output.logits, outputs.front().logits);
        }
      }
    }
  }
}

// A layer whose products of columns are added up, with a bias and an activation behind the sum.
TEST(ShardDecoder, AnActivationFollowsTheSum) {
  const int64_t in = 12;
  const int64_t out = 5;
  Random random(1);
  const GuardedTensor w = random.tensor(DType::f32, {out, in});
  const GuardedTensor bias = random.tensor(DType::f32, {out});
  const GuardedTensor x = random.tensor(DType::f32, {7, in});
  const Activation gelu{.kind = Activation::Kind::gelu};
  const auto part = [&](int64_t first, int64_t count, bool has_bias) {
    return Linear{.weight = std::make_unique<DenseWeight>(w.view().columns(first, count)),
                  .bias = {.buffer = {}, .view = has_bias ? bias.view() : Tensor()},
                  .activation = gelu,
                  .sums_over_ranks = count < in};
  };
  CpuContext ctx;
  const GuardedTensor whole(DType::f32, {7, out});
  part(0, in, true).forward(x.view(), whole.view(), ctx.exec);
  on_ranks(3, [&](int rank, Communicator& comm) {
    CpuContext own;
    own.exec.comm = &comm;
    const GuardedTensor y(DType::f32, {7, out});
    part(4 * rank, 4, rank == 0).forward(x.view().columns(4 * rank, 4), y.view(), own.exec);
    EXPECT_TRUE(close(values_of(y.view()), values_of(whole.view())));
  });
}

}  // namespace
}  // namespace sparsellm
