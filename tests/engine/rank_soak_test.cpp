#include <gtest/gtest.h>

#include "tests/engine/soak.h"

namespace sparsellm {
namespace {

TEST(RankSoak, EveryRequestIsAsIfItWereAlone) { testing::soak({.ranks = 2, .requests = 16}); }

}  // namespace
}  // namespace sparsellm
