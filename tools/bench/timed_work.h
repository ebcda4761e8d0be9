#pragma once

#include <cstdint>
#include <functional>

namespace sparsellm {

// Work in pieces that are run one after the other and then anew: run(i) does the i-th, or puts it
// on the stream of a device.
struct TimedWork {
  int64_t pieces = 0;
  std::function<void(int64_t)> run;
};

}  // namespace sparsellm
