#pragma once

#include <memory>

#include "kernels/base/comm.h"
#include "kernels/base/rendezvous.h"

namespace sparsellm {

// The communicator of one rank in a process of its own, for tensors on the CPU; returns when all
// ranks have come (meet()). Everything goes through rank 0, which adds up what it has received in
// the order of the ranks. It takes one thread, which sleeps unless something goes wrong.
std::unique_ptr<Communicator> make_tcp_communicator(const RendezvousOptions& options);

}  // namespace sparsellm
