#pragma once

#include <cstdint>
#include <string>

#include "tools/cli/progress_bar.h"

namespace sparsellm {

// A progress bar for a benchmark to call: "of 12 steps". Throws Interrupted after Ctrl-C.
class BenchProgress {
 public:
  BenchProgress(std::string label, std::string unit, bool enabled);

  void operator()(int64_t done, int64_t total);

 private:
  ProgressBar bar_;
  std::string unit_;
};

}  // namespace sparsellm
