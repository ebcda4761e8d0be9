#pragma once

#include <memory>

#include "kernels/base/kernel_compiler.h"

namespace sparsellm {

// NVRTC, which takes some 0.05 s for a small kernel, 0.4 s for one whose loops are unrolled to
// 2,000 instructions, and needs no GPU. The library is loaded by the first call that needs it, so
// that programs start where it is not installed. In a CPU-only build nothing can be compiled.
class RunTimeCompiler final : public KernelCompiler {
 public:
  RunTimeCompiler();
  ~RunTimeCompiler() override;

  // Why nothing can be compiled, in one line; empty if it can.
  std::string why_not();

  std::string version() override;
  std::vector<std::byte> compile(const KernelSource& source) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sparsellm
