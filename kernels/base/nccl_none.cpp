#include "kernels/base/error.h"
#include "kernels/base/nccl_rank.h"

// Stands in for NCCL in a build without it.
namespace sparsellm {

struct NcclRank::State {};

std::string NcclRank::why_not() { return "this build has no NCCL (see SPARSELLM_NCCL)"; }
std::vector<std::byte> NcclRank::make_id() { fail("{}", why_not()); }

NcclRank::NcclRank(std::span<const std::byte>, int, int, int, std::function<void()>) {
  fail("{}", why_not());
}
NcclRank::~NcclRank() = default;
void NcclRank::all_reduce_sum(void*, int64_t, DType, const CudaQueue&) {}
void NcclRank::broadcast(std::span<const Part>, const CudaQueue&) {}
std::string NcclRank::problem() noexcept { return {}; }
void NcclRank::abort() noexcept {}

}  // namespace sparsellm
