#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/comm.h"
#include "kernels/base/comm_kernels.h"
#include "kernels/base/device.h"

namespace sparsellm {

// All ranks get the first text that is not empty, in the order of the ranks.
std::string first_of_ranks(Communicator& host, std::string_view text);

// The memory of all ranks of one host that own kernels write to (CommLayout), each rank's on its
// device, as one rank reaches it: directly where ranks are threads of one process, over cudaIpc
// where they are processes. It is of cudaMalloc(), since neither peers nor cudaIpc reach the pool
// of Buffer.
class CommArea {
 public:
  // All ranks of `host` call this. nullptr, with the reason in `why_not`, on all of them if some
  // rank does not reach the memory of another. Throws Error, on all.
  static std::unique_ptr<CommArea> make(Communicator& host, Device device, std::string& why_not);

  // Nothing uses the memory any more on this rank. All ranks call it if they are in order; they
  // meet, if they are processes, before memory is freed that another still has mapped.
  ~CommArea();
  CommArea(const CommArea&) = delete;
  CommArea& operator=(const CommArea&) = delete;

  // Without an abort word.
  const CommWorld& world() const { return world_; }
  // The most blocks of a kernel that run at once on each of the GPUs.
  int max_blocks() const { return max_blocks_; }

 private:
  class Memory;
  struct Told;

  explicit CommArea(Communicator& host, Device device);
  std::vector<Told> tell(const std::shared_ptr<Memory>* own);
  void reach(const Told& other, int rank);

  Communicator& host_;
  Device device_;
  CommWorld world_;
  int max_blocks_ = CommLayout::kMaxBlocks;
  bool has_processes_ = false;
  std::vector<std::shared_ptr<Memory>> memory_;  // of this process, this rank's first
  std::vector<void*> mapped_;                    // of other processes
};

}  // namespace sparsellm
