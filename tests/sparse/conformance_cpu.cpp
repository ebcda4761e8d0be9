#include "tests/sparse/device_under_test.h"

namespace sparsellm::testing {

Device device_to_test() { return {}; }

}  // namespace sparsellm::testing
