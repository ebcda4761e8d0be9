#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/bench/args.h"
#include "tools/bench/kernel.h"
#include "tools/bench/matrix_args.h"
#include "tools/cli/cli_fwd.h"

namespace sparsellm {

// Tokens of --ablation, unless others are given.
inline constexpr int64_t kAblationTokens[] = {1, 8, 16};

// What the options of `kernel` are parsed into.
struct KernelArgs {
  std::vector<std::string> shapes;
  std::vector<std::string> configs;
  std::vector<int64_t> degrees{1};
  MatrixArgs matrices;
  std::string device = "auto";
  std::string dtype;  // empty: that of weights, or of matrices
  std::vector<int64_t> tokens;
  std::vector<std::string> patterns{"uniform"};
  std::vector<std::string> formats;
  std::string layout;
  std::string records;
  OutputArgs output;
  KernelBenchOptions options;
  int64_t copies_mib = KernelBenchOptions().rotation_bytes >> 20;
  std::string cpu_isa = "auto";
  bool ablation = false;
};

void add_kernel_options(CLI::App& command, KernelArgs& args);

}  // namespace sparsellm
