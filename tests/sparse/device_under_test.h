#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/cuda_context.h"
#include "kernels/base/exec.h"
#include "kernels/base/upload.h"
#include "sparse/format.h"

namespace sparsellm::testing {

// The device on which a program tests the formats (conformance_cpu.cpp, conformance_gpu.cpp).
Device device_to_test();

// That device with what loading and products take; it has to be there.
class DeviceUnderTest {
 public:
  explicit DeviceUnderTest(int64_t workspace_bytes = 128 << 20)
      : device_(device_to_test()),
        threads_(device_.is_cuda() ? 0 : 2),
        workspace_(device_, workspace_bytes),
        cuda_(device_.is_cuda() ? std::make_unique<CudaContext>(device_) : nullptr),
        uploads_(device_.is_cuda() ? std::make_unique<Uploader>(device_) : nullptr),
        exec_{
            .device = device_, .workspace = workspace_, .threads = threads_, .cuda = cuda_.get()} {}

  Device device() const { return device_; }
  ThreadPool& threads() { return threads_; }
  ExecContext& exec() { return exec_; }

  // Of activations for weights of this dtype.
  DType activations(DType weight) const { return device_.is_cuda() ? weight : DType::f32; }

  LoadContext context(DType weight) {
    return {.device = device_,
            .compute = activations(weight),
            .threads = threads_,
            .exec = [this]() -> ExecContext& { return exec_; },
            .uploads = uploads_.get()};
  }

  // Joins "part 0", "part 1", ...; the weight has its values on return.
  std::unique_ptr<WeightMatrix> load(const WeightFormat& format, std::span<EncodedWeight> parts,
                                     const MappedFile* file = nullptr) {
    return load_slices(format, parts, {}, file);
  }
  // Of the same slice of each part.
  std::unique_ptr<WeightMatrix> load_slices(const WeightFormat& format,
                                            std::span<EncodedWeight> parts,
                                            const std::optional<Slice>& slice,
                                            const MappedFile* file = nullptr) {
    std::vector<WeightPart> named;
    for (EncodedWeight& part : parts) {
      named.push_back({.weight = &part,
                       .name = fmt::format("part {}", named.size()),
                       .file = file,
                       .slice = slice});
    }
    std::unique_ptr<WeightMatrix> weight = format.load(named, context(parts.front().dtype));
    if (uploads_) {
      uploads_->finish();
    }
    return weight;
  }
  std::unique_ptr<WeightMatrix> load(const WeightFormat& format, EncodedWeight e) {
    return load(format, {&e, 1});
  }

  int64_t held() const { return uploads_ ? uploads_->held() : 0; }  // uploads

  // Returns when all that was enqueued is done.
  void synchronize() const {
    if (cuda_) {
      cuda_->synchronize();
    }
  }

 private:
  Device device_;
  ThreadPool threads_;
  Workspace workspace_;
  std::unique_ptr<CudaContext> cuda_;
  std::unique_ptr<Uploader> uploads_;
  ExecContext exec_;
};

}  // namespace sparsellm::testing
