#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "kernels/base/buffer.h"
#include "kernels/base/comm.h"
#include "kernels/base/exec.h"
#include "kernels/base/nccl_rank.h"
#include "kernels/base/tensor.h"

namespace sparsellm {

// Operations on tensors by NCCL, which takes no rows with gaps between them: such go through a
// buffer. As of Communicator, after its checks.
class NcclTensors {
 public:
  // All ranks call this, and have the library. Throws Error, on all of them.
  NcclTensors(Communicator& host, Device device);

  void all_reduce_sum(const Tensor& y, const ExecContext& ctx);
  // places: where in `whole` the part of each rank belongs.
  void all_gather(const Tensor& part, std::span<const Tensor> places, const ExecContext& ctx);
  void broadcast(const Tensor& y, int root, const ExecContext& ctx);

  // As of NcclRank.
  std::string problem() noexcept { return nccl_->problem(); }
  void abort() noexcept { nccl_->abort(); }

 private:
  void in_whole_rows(const Tensor& y, const ExecContext& ctx,
                     const std::function<void(const Tensor& contiguous)>& call);

  int rank_;
  Buffer staging_;
  std::unique_ptr<NcclRank> nccl_;
};

// On the device, of tensors with as many rows of as many bytes; nothing where both are the same
// memory.
void copy_rows_cuda(const Tensor& from, const Tensor& to, const ExecContext& ctx);

}  // namespace sparsellm
