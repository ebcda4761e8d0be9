#include "tests/testing/wait_for_device.h"

namespace sparsellm::testing {

void wait_for_device(Device) {}

}  // namespace sparsellm::testing
