#include "tools/cli/nccl_environment.h"

#include <cstdlib>

namespace sparsellm {

void leave_nvlink_multicast_off() {
  constexpr int kKeepWhatIsSet = 0;
  ::setenv("NCCL_NVLS_ENABLE", "0", kKeepWhatIsSet);  // NOLINT(concurrency-mt-unsafe)
}

}  // namespace sparsellm
