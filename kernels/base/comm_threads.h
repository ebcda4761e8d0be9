#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/comm.h"

namespace sparsellm {

struct ThreadCommOptions {
  std::vector<std::string> devices;  // names of the ranks' devices; empty: "cpu" for all
  std::chrono::milliseconds timeout{60000};
};

// Communicators of `ranks` threads of one process, one for each; any may be moved to its thread.
// Tensors are on the CPU. Each rank adds up its share of a sum, for all. Who waits sleeps; a rank
// whose communicator is destroyed has left, which the others are told as soon as they need it.
std::vector<std::unique_ptr<Communicator>> make_thread_communicators(
    int ranks, ThreadCommOptions options = {});

}  // namespace sparsellm
