#include "tests/engine/soak.h"

#include <gtest/gtest.h>

namespace sparsellm {
namespace {

TEST(Soak, EveryRequestIsAsIfItWereAlone) { testing::soak(); }

}  // namespace
}  // namespace sparsellm
