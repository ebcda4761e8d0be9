// Speed of encoding and decoding a weight in every format, on one thread, in bytes of the dense
// matrix per second.

#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <string>

#include "kernels/base/buffer.h"
#include "sparse/registry.h"

namespace sparsellm {
namespace {

constexpr int64_t kSize = 4096;

// f16 [kSize, kSize], a share of `sparsity` / 100 of it zeros at random places.
OwnedTensor random_weight(int64_t sparsity) {
  OwnedTensor w = allocate_tensor({}, DType::f16, {kSize, kSize}, "a weight");
  auto* const values = w.view.data<Half>();
  std::mt19937 random(1);
  for (int64_t i = 0; i < kSize * kSize; ++i) {
    const bool zero = static_cast<int64_t>(random() % 100) < sparsity;
    const auto magnitude = static_cast<uint16_t>(0x2000u + random() % 0x1000u);
    values[i] = {zero ? uint16_t{0} : magnitude};
  }
  return w;
}

void report(benchmark::State& state) {
  state.counters["dense_bytes"] = benchmark::Counter(
      static_cast<double>(kSize * kSize * 2 * state.iterations()), benchmark::Counter::kIsRate);
}

void encode(benchmark::State& state, const WeightFormat* format) {
  const OwnedTensor w = random_weight(state.range(0));
  ThreadPool one(1);
  for (auto _ : state) {
    benchmark::DoNotOptimize(format->encode(w.view, one));
  }
  report(state);
}

void decode(benchmark::State& state, const WeightFormat* format) {
  const OwnedTensor w = random_weight(state.range(0));
  ThreadPool one(1);
  const EncodedWeight e = format->encode(w.view, one);
  for (auto _ : state) {
    benchmark::DoNotOptimize(format->decode(e, one));
  }
  report(state);
}

void register_benchmarks() {
  for (const WeightFormat* format : weight_formats()) {
    const auto add = [&](const char* what, auto function) {
      benchmark::RegisterBenchmark((std::string(what) + "/" + std::string(format->name())).c_str(),
                                   function, format)
          ->ArgName("sparsity")
          ->Arg(50)
          ->Arg(60)
          ->Arg(70)
          ->Arg(90)
          ->Unit(benchmark::kMillisecond);
    };
    add("encode", encode);
    add("decode", decode);
  }
}

}  // namespace
}  // namespace sparsellm

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 1;
  }
  sparsellm::register_benchmarks();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
