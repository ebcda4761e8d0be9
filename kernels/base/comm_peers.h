#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/comm.h"
#include "kernels/base/comm_area.h"
#include "kernels/base/comm_kernels.h"
#include "kernels/base/comm_plan.h"
#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"

namespace sparsellm {

// Operations on tensors by own kernels, of the ranks of one host whose GPUs reach each other's
// memory; a large tensor takes several calls (comm_kernels.h). As of Communicator, after its
// checks.
class CommPeers {
 public:
  // nullptr, with the reason in `why_not`, if they do not (CommArea::make). abort_word: in
  // page-locked memory. max_blocks: of a kernel, at most.
  static std::unique_ptr<CommPeers> make(Communicator& host, Device device,
                                         const uint32_t* abort_word, int max_blocks,
                                         std::string& why_not);

  const CommWorld& world() const { return world_; }

  void all_reduce_sum(CommWay way, const Tensor& y, const ExecContext& ctx) const;

  enum class Form : uint8_t { packets, tiles };
  // places: where in `whole` the part of each rank belongs.
  void all_gather(Form form, const Tensor& part, std::span<const Tensor> places,
                  const ExecContext& ctx) const;
  void broadcast(Form form, const Tensor& y, int root, const ExecContext& ctx) const;

 private:
  CommPeers(std::unique_ptr<CommArea> area, const uint32_t* abort_word, int max_blocks);

  std::unique_ptr<CommArea> area_;
  CommWorld world_;
  int max_blocks_;
};

}  // namespace sparsellm
