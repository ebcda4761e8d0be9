// Decoding speed of the demo model on the CPU device, through Engine::submit and step.

#include <benchmark/benchmark.h>

#include <cstdint>

#include "engine/engine.h"

namespace sparsellm {
namespace {

constexpr int64_t kPromptTokens = 16;

void decode(benchmark::State& state) {
  const int64_t batch = state.range(0);
  const int64_t tokens = state.range(1);  // generated per request
  EngineOptions options;
  options.max_requests = batch;
  options.threads = static_cast<int>(state.range(2));
  Engine engine = Engine::load(SPARSELLM_DEMO_MODEL, options);
  for (auto _ : state) {
    const EngineStats before = engine.stats();
    for (int64_t i = 0; i < batch; ++i) {
      Request request;
      request.prompt.assign(kPromptTokens, static_cast<int32_t>(300 + i));
      request.max_tokens = tokens + 1;  // the first comes from the prefill
      request.ignore_eos = true;
      engine.submit(std::move(request), {});
    }
    while (engine.step()) {
    }
    state.SetIterationTime(engine.stats().decode_seconds - before.decode_seconds);
  }
  state.counters["tokens/s"] = benchmark::Counter(
      static_cast<double>(state.iterations() * batch * tokens), benchmark::Counter::kIsRate);
}

BENCHMARK(decode)
    ->ArgNames({"batch", "tokens", "threads"})
    ->ArgsProduct({{1, 4, 16, 32}, {128, 512}, {2}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace sparsellm

BENCHMARK_MAIN();
