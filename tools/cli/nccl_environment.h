#pragma once

namespace sparsellm {

// Sets NCCL_NVLS_ENABLE=0 unless the user has set it: of NVLink's multicast two ranks gain nothing,
// and its failures reach beyond the process. Before there are other threads.
void leave_nvlink_multicast_off();

}  // namespace sparsellm
