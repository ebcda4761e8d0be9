#include "tools/bench/throughput.h"

#include <gtest/gtest.h>

#include <cmath>
#include <new>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "kernels/base/error.h"
#include "models/weights/random_weights.h"
#include "tests/testing/paths.h"
#include "tests/testing/throws_error.h"
#include "tests/tools/bench/report_tables.h"
#include "tools/bench/arrivals.h"
#include "tools/bench/random_sparsity.h"
#include "tools/bench/read_bandwidth.h"
#include "tools/bench/requests.h"

namespace sparsellm {
namespace {

using nlohmann::json;
using testing::Report;
using testing::throws_error;

std::filesystem::path model(const char* name = "fable-llama-relu-8m") {
  return testing::data(std::filesystem::path("models") / name);
}

EngineOptions engine_options(int64_t max_requests) {
  EngineOptions options;
  options.max_requests = max_requests;
  options.context_size = 64;
  options.with_tokenizer = false;
  options.threads = 2;
  return options;
}

ThroughputOptions small(std::vector<int64_t> batches) {
  ThroughputOptions options;
  options.batches = std::move(batches);
  options.prompt = 5;
  options.output = 6;
  options.repeats = 2;
  options.read_bandwidth = 1e10;
  return options;
}

// Nobody counts the weights of neurons that are zero.
TEST(BenchThroughput, WithActivationSparsityWeightsAreNotSaidToBeRead) {
  Report report;
  bench_throughput(
      small({2}),
      [](int64_t max_requests) {
        EngineOptions options = engine_options(max_requests);
        options.activation_sparsity.mode = ActivationSparsity::Mode::exact;
        return Engine::load(model(), options);
      },
      report.writer());
  const json row = report.table("throughput").at(0);
  EXPECT_TRUE(row.at("weights_read_gib").is_null());
  EXPECT_TRUE(row.at("bandwidth_percent").is_null());
  EXPECT_GT(row.at("kv_read_gib"), 0.0);
  EXPECT_GT(row.at("weights_gib"), 0.0);
  EXPECT_GT(row.at("decode_ms"), 0.0);
}

// Of neurons of random weights as many are zero as are asked for, in every layer.
TEST(BenchThroughput, ReachesTheSharesOfNeurons) {
  for (const char* name : {"fable-llama-relu-8m", "fable-opt-8m"}) {
    for (const Votes votes : {Votes::sign, Votes::weighted}) {
      const std::filesystem::path file = model(name) / "config.json";
      const RandomWeights weights{.seed = 3};
      ThreadPool threads(2);
      EngineOptions options = engine_options(4);
      const ActivationSparsity chosen = choose_random_sparsity(
          read_model_config_file(file), weights, {.predicted = 0.8, .zeros = 0.9}, votes, threads);
      options.activation_sparsity = {.mode = chosen.mode,
                                     .votes = votes,
                                     .alphas = chosen.alphas,
                                     .thresholds = chosen.thresholds};
      Report report;
      bench_throughput(
          small({4}), [&](int64_t) { return Engine::load_random(file, weights, options); },
          report.writer());
      const json row = report.table("activation sparsity").at(0);
      EXPECT_GT(row.at("rows"), 0);
      for (const char* of : {"min", "mean", "max"}) {
        const auto percent = [&](const char* share) {
          return row.at(fmt::format("{}_{}_percent", share, of)).get<double>();
        };
        // One vote of 256 moves 3.5 % of the neurons; few tokens are not as all are.
        EXPECT_NEAR(percent("predicted"), 80.0, 5.0) << name << of;
        EXPECT_NEAR(percent("zeros"), 90.0, 4.0) << name << of;
      }
    }
  }
}

TEST(BenchThroughput, SharesNeedAnActivationWithZeros) {
  ModelConfig config = read_model_config_file(model() / "config.json");
  config.activation = {.kind = Activation::Kind::silu};
  ThreadPool threads(1);
  const auto choose = [&](const NeuronShares& shares) {
    choose_random_sparsity(config, {}, shares, Votes::sign, threads);
  };
  EXPECT_TRUE(throws_error([&] { choose({.predicted = 0.5, .zeros = 0.9}); }, "silu"));
  EXPECT_TRUE(throws_error([&] { choose({.predicted = 0.9, .zeros = 0.5}); }, "the first not"));
}

// Shorter outputs are read from the runs of the longest, also where prompts are prefilled one after
// the other.
TEST(BenchThroughput, ARowForEveryOutput) {
  ThroughputOptions options = small({4});
  options.shorter_outputs = {1, 3};
  options.step_tokens = 8;
  int64_t loads = 0;
  Report report;
  bench_throughput(
      options,
      [&](int64_t max_requests) {
        ++loads;
        EngineOptions engine = engine_options(max_requests);
        engine.step_tokens = 8;
        return Engine::load(model(), engine);
      },
      report.writer());
  EXPECT_EQ(loads, 1);
  const json rows = report.table("throughput");
  ASSERT_EQ(rows.size(), 3u);
  double seconds = 0.0;
  double pages = 0.0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const json& row = rows[i];
    const std::vector<int64_t> outputs{1, 3, 6};
    EXPECT_EQ(row.at("output"), outputs[i]);
    const double rate = row.at("tokens_per_gpu_second_max");
    EXPECT_GT(4.0 * static_cast<double>(outputs[i]) / rate, seconds);
    seconds = 4.0 * static_cast<double>(outputs[i]) / rate;
    EXPECT_GE(row.at("kv_used_gib"), pages);
    pages = row.at("kv_used_gib");
    EXPECT_EQ(row.at("decode_ms").is_null(), i == 0);
  }
  options.shorter_outputs = {3, 3};
  EXPECT_TRUE(throws_error([&] { bench_throughput(options, {}, report.writer()); },
                           "an output of 3 tokens after one of 3"));
  options.shorter_outputs = {6};
  EXPECT_TRUE(throws_error([&] { bench_throughput(options, {}, report.writer()); },
                           "an output of 6 tokens after one of 6"));
}

TEST(BenchRequests, AnAdjustedOneIsComputedBesideTheOthers) {
  Request request;
  adjust_request(request);
  EXPECT_NE(request.sampling.repetition_penalty, 1.0f);
  EXPECT_NE(request.sampling.frequency_penalty, 0.0f);
  EXPECT_NE(request.sampling.presence_penalty, 0.0f);
  EXPECT_FALSE(request.sampling.logit_bias.empty());
  EXPECT_EQ(request.log_probs, 5);
  EXPECT_FALSE(request.prompt_log_probs);
  score_prompt(request);
  EXPECT_TRUE(request.prompt_log_probs);
}

TEST(BenchThroughput, ARowForEveryBatch) {
  std::vector<int64_t> loads;
  Report report;
  bench_throughput(
      small({1, 8, 3}),
      [&](int64_t max_requests) {
        loads.push_back(max_requests);
        return Engine::load(model(), engine_options(max_requests));
      },
      report.writer());
  EXPECT_EQ(loads, std::vector<int64_t>{8});
  const json rows = report.table("throughput");
  ASSERT_EQ(rows.size(), 3u);
  const std::vector<int64_t> batches{1, 8, 3};
  for (size_t i = 0; i < rows.size(); ++i) {
    const json& row = rows[i];
    EXPECT_EQ(row.at("batch"), batches[i]);
    EXPECT_TRUE(row.at("note").is_null());
    for (const char* key : {"tokens_per_gpu_second", "prefill_ms", "decode_ms"}) {
      const double middle = row.at(key);
      EXPECT_GT(row.at(std::string(key) + "_min"), 0.0);
      EXPECT_LE(row.at(std::string(key) + "_min"), middle);
      EXPECT_GE(row.at(std::string(key) + "_max"), middle);
    }
    const double seconds =
        1e-3 * (row.at("prefill_ms").get<double>() + 5 * row.at("decode_ms").get<double>());
    const double tokens_per_second = static_cast<double>(batches[i]) * 6 / seconds;
    EXPECT_GT(row.at("tokens_per_gpu_second"), 0.2 * tokens_per_second);
    EXPECT_LT(row.at("tokens_per_gpu_second"), 5 * tokens_per_second);
    for (const char* key : {"decode_first_ms", "decode_last_ms"}) {
      EXPECT_GE(row.at(key), row.at("decode_ms_min"));
      EXPECT_LE(row.at(key), row.at("decode_ms_max"));
    }
    const double moved =
        (row.at("weights_read_gib").get<double>() + row.at("kv_read_gib").get<double>()) *
        (1 << 30);
    EXPECT_NEAR(row.at("bandwidth_percent"),
                100.0 * moved / (row.at("decode_ms").get<double>() * 1e-3 * 1e10), 1e-6);
    EXPECT_DOUBLE_EQ(row.at("memory_gib"), row.at("weights_gib").get<double>() +
                                               row.at("workspace_gib").get<double>() +
                                               row.at("kv_used_gib").get<double>());
  }
  EXPECT_TRUE(report.table("breakdown").empty());
}

// Eight layers of 256 features in f32: 16 KiB a token; 11 tokens take a page of 16.
TEST(BenchThroughput, BytesOfKeysAndValues) {
  Report report;
  bench_throughput(
      small({2}), [&](int64_t most) { return Engine::load(model(), engine_options(most)); },
      report.writer());
  const Engine engine = Engine::load(model(), engine_options(2));
  const ModelConfig& config = engine.config();
  const double token_bytes =
      static_cast<double>(2 * config.num_layers * config.num_kv_heads * config.head_dim) * 4.0;
  const json row = report.table("throughput")[0];
  EXPECT_DOUBLE_EQ(row.at("kv_read_gib"), 2 * (5 + 3) * token_bytes / (1 << 30));
  EXPECT_DOUBLE_EQ(row.at("kv_used_gib"), 2 * 16 * token_bytes / (1 << 30));
  EXPECT_DOUBLE_EQ(row.at("weights_gib"),
                   static_cast<double>(engine.stats().weight_bytes) / (1 << 30));
}

TEST(BenchThroughput, WeightsThatAreOnlyLookedUpAreNotRead) {
  const auto saved = [](const char* name) {
    const Engine engine = Engine::load(model(name), engine_options(1));
    const int64_t bytes = engine.stats().weight_bytes;
    return bytes - weight_bytes_per_step(engine.config(), bytes);
  };
  ModelConfig config = read_model_config(model());
  EXPECT_EQ(saved("fable-llama-relu-8m"),
            config.tied_head ? 0 : 2 * config.vocab_size * config.hidden_size);
  config = read_model_config(model("fable-opt-8m"));
  EXPECT_EQ(
      saved("fable-opt-8m"),
      2 * config.hidden_size * (config.max_positions + (config.tied_head ? 0 : config.vocab_size)));
  ModelConfig untied = read_model_config(model());
  untied.tied_head = false;
  const int64_t table = untied.vocab_size * untied.hidden_size;
  EXPECT_EQ(weight_bytes_per_step(untied, 20'000'000), 20'000'000 - 2 * table);
  EXPECT_EQ(weight_bytes_per_step(untied, 40'000'000), 40'000'000 - 4 * table);
  // A rank has the whole table, and reads of it, where it is tied, the rows of its own logits.
  const Shard half{.rank = 0, .degree = 2};
  EXPECT_EQ(weight_bytes_per_step(untied, 10'000'000, half), 10'000'000 - 2 * table);
  EXPECT_EQ(weight_bytes_per_step(untied, 40'000'000, half), 40'000'000 - 4 * table);
  ModelConfig tied = untied;
  tied.tied_head = true;
  EXPECT_EQ(weight_bytes_per_step(tied, 10'000'000, half), 10'000'000 - table);
}

TEST(BenchThroughput, OneTokenHasNoDecodeStep) {
  ThroughputOptions options = small({2});
  options.output = 1;
  Report report;
  bench_throughput(
      options, [&](int64_t most) { return Engine::load(model(), engine_options(most)); },
      report.writer());
  const json row = report.table("throughput")[0];
  EXPECT_GT(row.at("tokens_per_gpu_second"), 0.0);
  EXPECT_TRUE(row.at("decode_ms").is_null());
  EXPECT_TRUE(row.at("decode_last_ms").is_null());
  EXPECT_TRUE(row.at("bandwidth_percent").is_null());
}

TEST(BenchThroughput, FiguresAreOfOneGpu) {
  ThroughputOptions options = small({2});
  options.ranks = 4;  // of which there is one
  options.device = {.kind = Device::Kind::cuda, .index = 0};
  options.repeats = 1;
  options.pattern = "rows:0.5";
  Report report;
  bench_throughput(
      options, [&](int64_t most) { return Engine::load(model(), engine_options(most)); },
      report.writer());
  const json row = report.table("throughput")[0];
  EXPECT_EQ(row.at("pattern"), "rows:0.5");
  const auto ms = [&](const char* key) { return row.at(key).get<double>(); };
  const auto per_gpu_second = [&](double decode_ms) {
    return 2 * 6 / (4 * 1e-3 * (ms("prefill_ms") + 5 * decode_ms));
  };
  EXPECT_GT(row.at("tokens_per_gpu_second"), 0.999 * per_gpu_second(ms("decode_ms_max")));
  EXPECT_LT(row.at("tokens_per_gpu_second"), 1.001 * per_gpu_second(ms("decode_ms_min")));
  const double moved = (ms("weights_read_gib") + ms("kv_read_gib")) * (1 << 30);
  EXPECT_NEAR(row.at("bandwidth_percent"), 100.0 * moved / (ms("decode_ms") * 1e-3 * 1e10), 1e-6);
}

// Those on the CPU share its memory, and there is no GPU-second.
TEST(BenchThroughput, RanksOnTheCpu) {
  ThroughputOptions options = small({2});
  options.ranks = 2;
  Report report;
  bench_throughput(
      options,
      [&](int64_t most) {
        EngineOptions of_engine = engine_options(most);
        of_engine.tensor_parallel.degree = 2;
        return Engine::load(model(), of_engine);
      },
      report.writer());
  const json row = report.table("throughput")[0];
  EXPECT_EQ(row.at("ranks"), 2);
  const double seconds =
      1e-3 * (row.at("prefill_ms").get<double>() + 5 * row.at("decode_ms").get<double>());
  EXPECT_GT(row.at("tokens_per_gpu_second"), 0.2 * 2 * 6 / seconds);
  const double moved =
      (row.at("weights_read_gib").get<double>() + row.at("kv_read_gib").get<double>()) * (1 << 30);
  EXPECT_NEAR(row.at("bandwidth_percent"),
              100.0 * 2 * moved / (row.at("decode_ms").get<double>() * 1e-3 * 1e10), 1e-6);
}

TEST(BenchThroughput, UnknownBandwidth) {
  ThroughputOptions options = small({1});
  options.read_bandwidth = 0.0;
  Report report;
  bench_throughput(
      options, [&](int64_t most) { return Engine::load(model(), engine_options(most)); },
      report.writer());
  EXPECT_TRUE(report.table("throughput")[0].at("bandwidth_percent").is_null());
}

TEST(BenchThroughput, LoadsForWhatFits) {
  std::vector<int64_t> loads;
  Report report;
  bench_throughput(
      small({4, 16, 2, 32}),
      [&](int64_t most) {
        loads.push_back(most);
        if (most > 4) {
          throw OutOfMemory(fmt::format("out of memory on cpu: {} requests", most));
        }
        return Engine::load(model(), engine_options(most));
      },
      report.writer());
  EXPECT_EQ(loads, (std::vector<int64_t>{32, 16, 4}));
  const json rows = report.table("throughput");
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_GT(rows[0].at("tokens_per_gpu_second"), 0.0);
  EXPECT_EQ(rows[1].at("batch"), 16);
  EXPECT_EQ(rows[1].at("note"), "out of memory on cpu: 16 requests");
  EXPECT_TRUE(rows[1].at("tokens_per_gpu_second").is_null());
  EXPECT_GT(rows[2].at("tokens_per_gpu_second"), 0.0);
  EXPECT_EQ(rows[3].at("note"), "out of memory on cpu: 32 requests");
}

TEST(BenchThroughput, NothingFits) {
  Report report;
  bench_throughput(
      small({1, 2}),
      [&](int64_t most) -> Engine {
        throw OutOfMemory(fmt::format("cuBLAS: out of memory at {}", most));
      },
      report.writer());
  const json rows = report.table("throughput");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].at("note"), "out of memory: cuBLAS: out of memory at 1");
}

TEST(BenchThroughput, BadAllocIsOutOfMemory) {
  Report report;
  bench_throughput(
      small({1}), [&](int64_t) -> Engine { throw std::bad_alloc(); }, report.writer());
  EXPECT_EQ(report.table("throughput")[0].at("note"), "out of memory");
}

TEST(BenchThroughput, KvCacheThatIsTooSmall) {
  Report report;
  bench_throughput(
      small({2, 3}),
      [&](int64_t most) {
        EngineOptions options = engine_options(most);
        options.kv_tokens = 2 * 16;
        return Engine::load(model(), options);
      },
      report.writer());
  const json rows = report.table("throughput");
  EXPECT_GT(rows[0].at("tokens_per_gpu_second"), 0.0);
  EXPECT_EQ(rows[1].at("note"),
            "out of memory: 3 requests of 11 tokens need 3 pages of KV cache, but there are 2");
}

// Outputs for which there is room are measured where longer ones do not fit.
TEST(BenchThroughput, KvCacheThatIsTooSmallForTheLongestOutput) {
  ThroughputOptions options = small({1, 3});
  options.shorter_outputs = {2, 11};
  options.output = 12;
  Report report;
  bench_throughput(
      options,
      [&](int64_t most) {
        EngineOptions of_engine = engine_options(most);
        of_engine.kv_tokens = 3 * 16;
        return Engine::load(model(), of_engine);
      },
      report.writer());
  const json rows = report.table("throughput");
  ASSERT_EQ(rows.size(), 6u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_GT(rows[i].at("tokens_per_gpu_second"), 0.0) << i;
    EXPECT_EQ(rows[i].at("output"), std::vector<int>({2, 11, 12, 2, 11})[i]);
  }
  EXPECT_EQ(rows[5].at("output"), 12);
  EXPECT_EQ(rows[5].at("note"),
            "out of memory: 3 requests of 17 tokens need 6 pages of KV cache, but there are 3");
}

// The first step of a batch fails, and the next batch runs in the same engine.
TEST(BenchThroughput, MemoryThatRunsOutInAStep) {
  ThroughputOptions options = small({2, 1});
  int calls = 0;
  options.progress = [&](int64_t, int64_t) {
    if (++calls == 2) {
      throw OutOfMemory("out of memory on cpu: the step");
    }
  };
  Report report;
  bench_throughput(
      options, [&](int64_t most) { return Engine::load(model(), engine_options(most)); },
      report.writer());
  const json rows = report.table("throughput");
  EXPECT_EQ(rows[0].at("note"), "out of memory on cpu: the step");
  EXPECT_GT(rows[1].at("tokens_per_gpu_second"), 0.0);
}

TEST(BenchThroughput, OtherErrorsAreThrown) {
  Report report;
  EXPECT_TRUE(throws_error(
      [&] {
        bench_throughput(
            small({1}), [](int64_t) -> Engine { fail("no such model"); }, report.writer());
      },
      "no such model"));
  const LoadEngine load = [](int64_t most) { return Engine::load(model(), engine_options(most)); };
  EXPECT_TRUE(
      throws_error([&] { bench_throughput(small({}), load, report.writer()); }, "no batch"));
  EXPECT_TRUE(throws_error([&] { bench_throughput(small({0}), load, report.writer()); },
                           "a batch of 0 requests"));
  ThroughputOptions options = small({1});
  options.repeats = 0;
  EXPECT_TRUE(throws_error([&] { bench_throughput(options, load, report.writer()); }, "0 repeats"));
  options = small({1});
  options.step_tokens = 0;
  EXPECT_TRUE(
      throws_error([&] { bench_throughput(options, load, report.writer()); }, "steps of 0 tokens"));
  options = small({1});
  options.output = 0;
  EXPECT_TRUE(throws_error([&] { bench_throughput(options, load, report.writer()); },
                           "outputs of 0 tokens"));
}

TEST(BenchThroughput, Breakdown) {
  ThroughputOptions options = small({1, 2});
  int steps = 0;
  options.breakdown = [&](const Engine&) {
    StepBreakdown groups{{"linear dense", 1e-6}, {"attention", 2e-6}};
    if (++steps % 5 != 1) {  // not in the first full step of a run
      groups.emplace_back("other", 3e-6);
    }
    return groups;
  };
  Report report;
  bench_throughput(
      options, [&](int64_t most) { return Engine::load(model(), engine_options(most)); },
      report.writer());
  const json rows = report.table("breakdown");
  ASSERT_EQ(rows.size(), 8u);
  const std::vector<std::string> groups{"linear dense", "attention", "other", "rest of the step"};
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].at("batch"), i < 4 ? 1 : 2);
    EXPECT_EQ(rows[i].at("group"), groups[i % 4]);
  }
  EXPECT_DOUBLE_EQ(rows[0].at("ms_per_step"), 1e-3);
  EXPECT_DOUBLE_EQ(rows[2].at("ms_per_step"), 3e-3);
  EXPECT_EQ(rows[2].at("ms_per_step_min"), 0.0);
  const double step = report.table("throughput")[0].at("decode_ms");
  EXPECT_NEAR(rows[1].at("percent"), 100.0 * 2e-3 / step, 1e-9);
}

TEST(BenchThroughput, ProgressReachesItsEnd) {
  ThroughputOptions options = small({1, 2});
  int64_t last = 0;
  int64_t all = 0;
  options.progress = [&](int64_t done, int64_t total) {
    EXPECT_GE(done, last);
    EXPECT_LE(done, total);
    last = done;
    all = total;
  };
  Report report;
  bench_throughput(
      options, [&](int64_t most) { return Engine::load(model(), engine_options(most)); },
      report.writer());
  EXPECT_EQ(last, all);
}

TEST(BenchRequests, RandomNumbersAreFixed) {
  BenchRandom random(1);
  BenchRandom same(1);
  BenchRandom other(2);
  double sum = 0.0;
  bool differs = false;
  for (int i = 0; i < 10'000; ++i) {
    const double value = random.uniform();
    ASSERT_GE(value, 0.0);
    ASSERT_LT(value, 1.0);
    ASSERT_EQ(value, same.uniform());
    differs = differs || value != other.uniform();
    sum += value;
  }
  EXPECT_TRUE(differs);
  EXPECT_NEAR(sum / 10'000, 0.5, 0.02);
  std::set<int64_t> drawn;
  for (int i = 0; i < 200; ++i) {
    drawn.insert(random.uniform(3, 6));
  }
  EXPECT_EQ(drawn, (std::set<int64_t>{3, 4, 5, 6}));
}

TEST(BenchArrivals, GapsAreExponential) {
  constexpr int64_t kCount = 20'000;
  const std::vector<double> times = poisson_arrivals(4.0, kCount, 7);
  ASSERT_EQ(std::ssize(times), kCount);
  EXPECT_EQ(times, poisson_arrivals(4.0, kCount, 7));
  EXPECT_NE(times, poisson_arrivals(4.0, kCount, 8));
  double before = 0.0;
  double squares = 0.0;
  int64_t longer = 0;
  for (double time : times) {
    const double gap = time - before;
    ASSERT_GE(gap, 0.0);
    squares += gap * gap;
    longer += gap > 0.25 ? 1 : 0;
    before = time;
  }
  EXPECT_NEAR(times.back() / kCount, 0.25, 0.01);          // mean 1 / rate
  EXPECT_NEAR(squares / kCount, 2.0 * 0.25 * 0.25, 0.01);  // second moment 2 / rate^2
  EXPECT_NEAR(static_cast<double>(longer) / kCount, std::exp(-1.0), 0.01);
  EXPECT_TRUE(throws_error([] { poisson_arrivals(0.0, 1, 1); }, "0 requests per second"));
}

TEST(BenchArrivals, ServesAll) {
  Engine engine = Engine::load(model(), engine_options(3));
  ArrivalOptions options;
  options.rate = 300.0;
  options.requests = 9;
  options.prompt = {.min = 2, .max = 9};
  options.output = {.min = 1, .max = 5};
  int64_t done = 0;
  options.progress = [&](int64_t finished, int64_t) { done = finished; };
  Report report;
  bench_arrivals(engine, options, report.writer());
  EXPECT_EQ(done, 9);
  const json serving = report.table("serving")[0];
  EXPECT_EQ(serving.at("requests"), 9);
  EXPECT_GE(serving.at("tokens"), 9);
  EXPECT_LE(serving.at("tokens"), 45);
  EXPECT_EQ(serving.at("preemptions"), 0);
  EXPECT_GT(serving.at("tokens_per_gpu_second"), 0.0);
  const json latency = report.table("latency");
  ASSERT_EQ(latency.size(), 3u);
  for (const json& row : latency) {
    EXPECT_GT(row.at("p50_ms"), 0.0);
    EXPECT_LE(row.at("p50_ms"), row.at("p90_ms"));
    EXPECT_LE(row.at("p90_ms"), row.at("p99_ms"));
    EXPECT_LE(row.at("p99_ms"), row.at("max_ms"));
    EXPECT_LE(row.at("mean_ms"), row.at("max_ms"));
  }
  EXPECT_LE(latency[0].at("max_ms"), latency[2].at("max_ms"));
}

TEST(BenchArrivals, FiguresFitTogether) {
  Engine engine = Engine::load(model(), engine_options(3));
  ArrivalOptions options;
  options.rate = 300.0;
  options.requests = 7;
  options.prompt = {.min = 3, .max = 3};
  options.output = {.min = 5, .max = 5};
  options.seed = 11;
  options.ranks = 4;
  options.device = {.kind = Device::Kind::cuda, .index = 0};
  options.pattern = "rows:0.5";
  Report report;
  bench_arrivals(engine, options, report.writer());
  const json serving = report.table("serving")[0];
  EXPECT_EQ(serving.at("pattern"), "rows:0.5");
  EXPECT_EQ(serving.at("ranks"), 4);
  EXPECT_EQ(serving.at("rate"), 300.0);
  EXPECT_EQ(serving.at("tokens"), 7 * 5);
  const double seconds = serving.at("seconds");
  EXPECT_DOUBLE_EQ(serving.at("tokens_per_gpu_second"), 7 * 5 / (seconds * 4));
  EXPECT_DOUBLE_EQ(serving.at("requests_per_second"), 7 / seconds);
  const json latency = report.table("latency");
  ASSERT_EQ(latency.size(), 3u);
  const std::vector<std::string> metrics{"time to first token", "time per output token", "latency"};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(latency[i].at("metric"), metrics[i]);
    EXPECT_EQ(latency[i].at("pattern"), "rows:0.5");
  }
  const auto ms = [&](size_t i, const char* key) { return latency[i].at(key).get<double>(); };
  EXPECT_NEAR(ms(1, "mean_ms") * 4, ms(2, "mean_ms") - ms(0, "mean_ms"), 1e-9 * ms(2, "mean_ms"));
  // The last request comes before the last token, and no request is there before it comes.
  const std::vector<double> times = poisson_arrivals(300.0, 7, 11);
  const double arriving = times.back() - times.front();
  EXPECT_GT(seconds, arriving);
  EXPECT_LE(seconds, arriving + 1e-3 * ms(2, "max_ms") * (1 + 1e-9));
  EXPECT_GE(seconds * (1 + 1e-9), 1e-3 * ms(2, "max_ms"));
}

// Of this measurement alone, not of the requests before it.
TEST(BenchArrivals, PreemptionsAreCounted) {
  EngineOptions small_cache = engine_options(4);
  small_cache.kv_tokens = 5 * 16;
  Engine engine = Engine::load(model(), small_cache);
  ArrivalOptions options;
  options.rate = 1e6;
  options.requests = 4;
  options.prompt = {.min = 15, .max = 15};
  options.output = {.min = 20, .max = 20};
  int64_t counted = 0;
  for (int i = 0; i < 2; ++i) {
    Report report;
    bench_arrivals(engine, options, report.writer());
    const int64_t preemptions = report.table("serving")[0].at("preemptions");
    EXPECT_GT(preemptions, 0);
    counted += preemptions;
  }
  EXPECT_LE(counted, engine.stats().preemptions);
}

TEST(BenchArrivals, OneTokenHasNoTimePerOutputToken) {
  Engine engine = Engine::load(model(), engine_options(2));
  ArrivalOptions options;
  options.rate = 1000.0;
  options.requests = 2;
  options.prompt = {.min = 3, .max = 3};
  options.output = {.min = 1, .max = 1};
  Report report;
  bench_arrivals(engine, options, report.writer());
  EXPECT_TRUE(report.table("latency")[1].at("mean_ms").is_null());
}

TEST(BenchArrivals, RefusedRequest) {
  Engine engine = Engine::load(model(), engine_options(2));
  ArrivalOptions options;
  options.rate = 1000.0;
  options.requests = 2;
  options.prompt = {.min = 100, .max = 100};
  Report report;
  EXPECT_TRUE(throws_error([&] { bench_arrivals(engine, options, report.writer()); },
                           "the prompt has 100 tokens"));
  EXPECT_FALSE(engine.step());  // nothing is left behind
}

TEST(ReadBandwidth, OfTheCpu) {
  const double bandwidth = measure_read_bandwidth(Device{}, 1 << 20);
  EXPECT_GT(bandwidth, 0.0);
  EXPECT_TRUE(std::isfinite(bandwidth));
  EXPECT_TRUE(throws_error([] { measure_read_bandwidth(Device{}, 0); }, "0 bytes"));
}

}  // namespace
}  // namespace sparsellm
