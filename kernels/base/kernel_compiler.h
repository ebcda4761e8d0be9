#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace sparsellm {

// A text of CUDA C++20 that is compiled when the program runs, and what for.
struct KernelSource {
  std::string name = "kernel";  // of the text, in errors: "kernel(3): error: ..."
  // Includes nothing: where a program runs, there need not be CUDA's headers, nor its own. Kernels
  // are found by their names, extern "C".
  std::string text;
  int architecture = 0;                   // compute capability, 10 * major + minor
  std::vector<std::string> defines = {};  // macros, "NAME" or "NAME=VALUE"
};

// Several threads may call.
class KernelCompiler {
 public:
  virtual ~KernelCompiler() = default;

  // Names all that code depends on besides the KernelSource; one line. Throws Error where nothing
  // can be compiled.
  virtual std::string version() = 0;
  // The code for GPUs of that compute capability (a cubin). Throws Error of one line that names the
  // source, the line in it and the mistake.
  virtual std::vector<std::byte> compile(const KernelSource& source) = 0;
};

}  // namespace sparsellm
