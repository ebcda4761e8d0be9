#include "kernels/base/choose_device.h"

#include <charconv>
#include <optional>
#include <system_error>

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

// CUDA says 13000 for 13.0.
std::string cuda_version(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// Why there are no GPUs.
std::string why_none(const CudaFacts& facts) {
  if (facts.runtime_version == 0) {
    return std::string(kCpuOnlyBuild);
  }
  if (facts.driver_version == 0) {
    return "there is no NVIDIA driver";
  }
  if (facts.problem.empty()) {
    return "this machine has no CUDA device";
  }
  return fmt::format("{} (the NVIDIA driver knows CUDA up to {}, this build is of CUDA {})",
                     facts.problem, cuda_version(facts.driver_version),
                     cuda_version(facts.runtime_version));
}

// Why a GPU that is there cannot be used; empty if it can.
std::string why_not(const CudaFacts& facts, size_t index) {
  const GpuFacts& gpu = facts.gpus[index];
  std::string reason;
  if (gpu.compute_capability < kMinComputeCapability) {
    reason = fmt::format("at least {}.{} is needed", kMinComputeCapability / 10,
                         kMinComputeCapability % 10);
  } else {
    reason = facts.why_no_code(static_cast<int>(index));
  }
  if (reason.empty()) {
    return reason;
  }
  return fmt::format("cuda:{} ({}, compute capability {}.{}) cannot be used: {}", index, gpu.name,
                     gpu.compute_capability / 10, gpu.compute_capability % 10, reason);
}

DeviceChoice choose_automatically(const CudaFacts& facts) {
  std::string reasons;
  for (size_t i = 0; i < facts.gpus.size(); ++i) {
    const std::string reason = why_not(facts, i);
    if (reason.empty()) {
      return {.device = {.kind = Device::Kind::cuda, .index = static_cast<int>(i)}, .warning = {}};
    }
    reasons += (reasons.empty() ? "" : "; ") + reason;
  }
  if (facts.gpus.empty() && facts.driver_version > 0 && !facts.problem.empty()) {
    reasons = why_none(facts);
  }
  // Without a GPU or a driver the CPU is what the user expects: there is nothing to warn of.
  return {.device = {}, .warning = reasons.empty() ? reasons : "the device is the CPU: " + reasons};
}

// N of "cuda:N", 0 of "cuda".
std::optional<int> parse_index(std::string_view text) {
  constexpr std::string_view kPrefix = "cuda:";
  if (text == "cuda") {
    return 0;
  }
  if (!text.starts_with(kPrefix)) {
    return std::nullopt;
  }
  int index = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + kPrefix.size(), end, index);
  const bool known = error == std::errc{} && stop == end && index >= 0;
  return known ? std::optional(index) : std::nullopt;
}

}  // namespace

DeviceChoice choose_device(std::string_view text, const CudaFacts& facts) {
  if (text == "cpu") {
    return {};
  }
  if (text == "auto") {
    return choose_automatically(facts);
  }
  const std::optional<int> index = parse_index(text);
  require(index.has_value(), "unknown device '{}'; use auto, cpu, cuda or cuda:N", text);
  require(!facts.gpus.empty(), "device cuda:{} is not there: {}", *index, why_none(facts));
  require(static_cast<size_t>(*index) < facts.gpus.size(),
          "device cuda:{} is not there: this machine has {} CUDA device(s)", *index,
          facts.gpus.size());
  const std::string reason = why_not(facts, static_cast<size_t>(*index));
  require(reason.empty(), "device {}", reason);
  return {.device = {.kind = Device::Kind::cuda, .index = *index}, .warning = {}};
}

}  // namespace sparsellm
