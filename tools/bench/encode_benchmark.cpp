// Speed of encoding and decoding a weight in every format, on one thread and, where there is a GPU,
// of encoding one there, in bytes of the dense matrix per second.

#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <string>

#include "kernels/base/buffer.h"
#include "kernels/base/cuda_context.h"
#include "kernels/base/exec.h"
#include "kernels/base/upload.h"
#include "kernels/fill_random.h"
#include "sparse/registry.h"
#include "sparse/tca_bme/tca_bme.h"

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

void report(benchmark::State& state, int64_t bytes = kSize * kSize * 2) {
  state.counters["dense_bytes"] = benchmark::Counter(
      static_cast<double>(bytes * state.iterations()), benchmark::Counter::kIsRate);
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

// Of the largest matrix of OPT-30B, with the allocations that loading takes.
void encode_on_device(benchmark::State& state, const WeightFormat* format,
                      const std::string& layout) {
  constexpr int64_t kRows = 28672;
  constexpr int64_t kColumns = 7168;
  const Device device{.kind = Device::Kind::cuda, .index = 0};
  Workspace workspace(device, 1 << 20);
  ThreadPool threads(0);  // of formats that are encoded on the host
  CudaContext cuda(device);
  ExecContext exec{.device = device, .workspace = workspace, .threads = threads, .cuda = &cuda};
  Uploader uploads(device);
  const OwnedTensor w = allocate_tensor(device, DType::f16, {kRows, kColumns}, "a weight");
  fill_random({.key = 1, .sparsity = static_cast<double>(state.range(0)) / 100.0},
              Tensor(w.view.raw(), DType::f16, {kRows * kColumns}, device), exec);
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        format->encode_on_device(w.view, {.layout = layout},
                                 {.device = device,
                                  .compute = DType::f16,
                                  .threads = threads,
                                  .exec = [&]() -> ExecContext& { return exec; },
                                  .uploads = &uploads}));
  }
  report(state, w.view.bytes());
}

void register_benchmarks() {
  for (const WeightFormat* format : weight_formats()) {
    const auto add = [&](const std::string& what, auto function, auto... layout) {
      benchmark::RegisterBenchmark((what + "/" + std::string(format->name())).c_str(), function,
                                   format, layout...)
          ->UseRealTime()
          ->ArgName("sparsity")
          ->Arg(50)
          ->Arg(60)
          ->Arg(70)
          ->Arg(90)
          ->Unit(benchmark::kMillisecond);
    };
    add("encode", encode);
    add("decode", decode);
    if (cuda_device_count() > 0) {
      add("encode_on_device", encode_on_device, std::string());
      if (format == &tca_bme_format()) {
        for (const char* values : {"i8", "f8", "i4", "i4:32"}) {
          add("encode_on_device " + std::string(values), encode_on_device, std::string(values));
        }
      }
    }
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
