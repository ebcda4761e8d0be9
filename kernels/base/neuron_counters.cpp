#include "kernels/base/neuron_counters.h"

#include <algorithm>
#include <atomic>

namespace sparsellm {
namespace {

void add_to(uint64_t& counter, int64_t more) {
  std::atomic_ref(counter).fetch_add(static_cast<uint64_t>(more), std::memory_order_relaxed);
}

}  // namespace

Buffer make_neuron_counters(Device device) {
  Buffer counters(device, sizeof(NeuronCounters), "the counters of neurons");
  const NeuronCounters zeros{};
  copy_bytes(device, counters.data(), Device{}, &zeros, sizeof(zeros));
  return counters;
}

NeuronCounters read_neuron_counters(const Buffer& counters) {
  if (counters.data() == nullptr) {
    return {};
  }
  if (!counters.device().is_cuda()) {
    auto& at = *static_cast<NeuronCounters*>(counters.data());
    const auto load = [](uint64_t& counter) {
      return std::atomic_ref(counter).load(std::memory_order_relaxed);
    };
    return {.rows = load(at.rows), .skipped = load(at.skipped), .active = load(at.active)};
  }
  NeuronCounters copy{};
  copy_bytes(Device{}, &copy, counters.device(), counters.data(), sizeof(copy));
  return copy;
}

void count_neurons_cpu(const Tensor& h, const NeuronTally& tally) {
  if (tally.counters == nullptr) {
    return;
  }
  int64_t rows = 0;
  int64_t skipped = 0;
  int64_t active = 0;
  for (int64_t token = 0; token < h.size(0); ++token) {
    if (!tally.positions.empty() && tally.positions.data<int32_t>()[token] < 0) {
      continue;
    }
    ++rows;
    const float* const values = h.row<float>(token);
    active += std::count_if(values, values + h.size(1), [](float value) { return value != 0.0f; });
    if (!tally.active.empty()) {
      const uint8_t* const flags = tally.active.row<uint8_t>(token);
      skipped += std::count(flags, flags + h.size(1), uint8_t{0});
    }
  }
  add_to(tally.counters->rows, rows);
  add_to(tally.counters->skipped, skipped);
  add_to(tally.counters->active, active);
}

}  // namespace sparsellm
