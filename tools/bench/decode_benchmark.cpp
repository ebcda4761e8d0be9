// Speed of a small model on the CPU device, through Engine::submit and step: decoding alone, with
// linear weights in each format, and requests that come and go against a batch that stays together.
//   decode_benchmark [MODEL] [options of Google Benchmark]
// MODEL is a directory, the demo model by default; a pruned one shows what sparse formats gain.

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>

#include "engine/engine.h"
#include "sparse/registry.h"

namespace sparsellm {
namespace {

constexpr int64_t kPromptTokens = 16;

std::string model = SPARSELLM_DEMO_MODEL;

Request request_of(int64_t prompt_tokens, int64_t tokens, int32_t token) {
  Request request;
  request.prompt.assign(static_cast<size_t>(prompt_tokens), token);
  request.max_tokens = tokens;
  request.ignore_eos = true;
  return request;
}

void report(benchmark::State& state, int64_t tokens) {
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(tokens), benchmark::Counter::kIsRate);
}

void decode(benchmark::State& state, std::string_view format) {
  const int64_t batch = state.range(0);
  const int64_t tokens = state.range(1);  // generated per request
  EngineOptions options;
  options.weight_format = format;
  options.max_requests = batch;
  options.threads = static_cast<int>(state.range(2));
  Engine engine = Engine::load(model, options);
  for (auto _ : state) {
    const EngineStats before = engine.stats();
    for (int64_t i = 0; i < batch; ++i) {
      // The first token comes from the prefill.
      engine.submit(request_of(kPromptTokens, tokens + 1, static_cast<int32_t>(300 + i)), {});
    }
    while (engine.step()) {
    }
    state.SetIterationTime(engine.stats().decode_seconds - before.decode_seconds);
  }
  report(state, state.iterations() * batch * tokens);
}

// As many requests as are computed at once, all of the same lengths, from prompt to end.
void static_batch(benchmark::State& state) {
  const int64_t batch = state.range(0);
  EngineOptions options;
  options.max_requests = batch;
  Engine engine = Engine::load(model, options);
  for (auto _ : state) {
    for (int64_t i = 0; i < batch; ++i) {
      engine.submit(request_of(kPromptTokens, 128, static_cast<int32_t>(300 + i)), {});
    }
    while (engine.step()) {
    }
  }
  report(state, state.iterations() * batch * 128);
}

// Requests of random lengths, with the same mean; a new one arrives when one has ended.
void continuous_batching(benchmark::State& state) {
  const int64_t batch = state.range(0);
  EngineOptions options;
  options.max_requests = batch;
  Engine engine = Engine::load(model, options);
  std::mt19937 random(1);
  int64_t tokens = 0;
  int64_t open = 0;
  const auto count = [&](const TokenEvent& event) {
    tokens += event.token ? 1 : 0;
    open -= event.finish ? 1 : 0;
  };
  for (auto _ : state) {
    const int64_t end = tokens + batch * 640;
    while (tokens < end) {
      for (; open < batch; ++open) {
        engine.submit(request_of(1 + static_cast<int64_t>(random() % 31),
                                 1 + static_cast<int64_t>(random() % 255),
                                 static_cast<int32_t>(300 + random() % 100)),
                      count);
      }
      engine.step();
    }
  }
  report(state, tokens);
}

BENCHMARK(static_batch)->Arg(16)->Arg(32)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(continuous_batching)->Arg(16)->Arg(32)->UseRealTime()->Unit(benchmark::kMillisecond);

void register_decode() {
  for (const WeightFormat* format : weight_formats()) {
    if (format->runs_on({})) {
      const std::string name = "decode/" + std::string(format->name());
      benchmark::RegisterBenchmark(
          name.c_str(), [format](benchmark::State& state) { decode(state, format->name()); })
          ->ArgNames({"batch", "tokens", "threads"})
          ->ArgsProduct({{1, 4, 16, 32}, {128, 512}, {2}})
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond);
    }
  }
}

}  // namespace
}  // namespace sparsellm

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (argc > 1 && argv[1][0] != '-') {
    sparsellm::model = argv[1];
    argv[1] = argv[0];
    ++argv;
    --argc;
  }
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 1;
  }
  sparsellm::register_decode();
  benchmark::RunSpecifiedBenchmarks();
}
