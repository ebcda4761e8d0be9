#include "tests/engine/infinite_logits.h"

#include <gtest/gtest.h>

namespace sparsellm {
namespace {

TEST(InfiniteLogits, EndTheirRequest) { testing::expect_infinite_logits_are_errors({}); }

}  // namespace
}  // namespace sparsellm
