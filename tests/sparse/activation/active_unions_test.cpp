#include "sparse/activation/active_unions.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "tests/testing/guarded_tensor.h"
#include "tests/testing/random.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

GuardedTensor masks(int64_t tokens, int64_t neurons, double density, Layout layout,
                    Random& random) {
  GuardedTensor tensor(DType::u8, {tokens, neurons}, layout);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < neurons; ++i) {
      // Any value but 0 is active.
      tensor.view().row<uint8_t>(t)[i] = random.uniform(0.0, 1.0) < density
                                             ? static_cast<uint8_t>(1 + random.below(255))
                                             : uint8_t{0};
    }
  }
  return tensor;
}

// Group by group, neuron by neuron, token by token.
ActiveUnions::Group naive_group(const Tensor& active, int64_t tokens) {
  ActiveUnions::Group group{.tokens = tokens};
  for (int64_t first = 0; first + tokens <= active.size(0); first += tokens) {
    for (int64_t i = 0; i < active.size(1); ++i) {
      bool is_active = false;
      for (int64_t t = first; t < first + tokens; ++t) {
        is_active = is_active || active.row<uint8_t>(t)[i] != 0;
      }
      group.neurons += 1;
      group.active += is_active ? 1 : 0;
    }
  }
  return group;
}

void expect_unions(const ActiveUnions& unions, const Tensor& active) {
  ASSERT_EQ(unions.groups.size(), 6u);
  int64_t tokens = 1;
  for (const ActiveUnions::Group& group : unions.groups) {
    const ActiveUnions::Group expected = naive_group(active, tokens);
    EXPECT_EQ(group.tokens, tokens);
    EXPECT_EQ(group.neurons, expected.neurons);
    EXPECT_EQ(group.active, expected.active) << tokens;
    tokens *= 2;
  }
}

TEST(ActiveUnions, MatchTheDefinition) {
  Random random(41);
  for (const int64_t tokens : {0, 1, 2, 3, 17, 31, 32, 33, 64, 130}) {
    for (const int64_t neurons : {0, 1, 3, 67}) {
      for (const double density : {0.0, 0.02, 0.5, 1.0}) {
        for (const Layout layout : {Layout::contiguous, Layout::strided}) {
          SCOPED_TRACE(fmt::format("[{}, {}], {}", tokens, neurons, density));
          const GuardedTensor active = masks(tokens, neurons, density, layout, random);
          expect_unions(count_unions(active.view()), active.view());
        }
      }
    }
  }
}

TEST(ActiveUnions, AddUp) {
  Random random(42);
  const GuardedTensor all = masks(96, 50, 0.1, Layout::contiguous, random);
  ActiveUnions sum = count_unions(all.view().rows(64, 32));
  sum.add(count_unions(all.view().rows(0, 64)));
  expect_unions(sum, all.view());
}

TEST(ActiveUnions, Shares) {
  EXPECT_EQ(ActiveUnions{}.groups[0].share(), 0.0);
  GuardedTensor active(DType::u8, {2, 2});
  for (int64_t t = 0; t < 2; ++t) {
    active.view().row<uint8_t>(t)[0] = t == 0 ? 1 : 0;
    active.view().row<uint8_t>(t)[1] = 0;
  }
  const ActiveUnions unions = count_unions(active.view());
  EXPECT_EQ(unions.groups[0].share(), 0.25);
  EXPECT_EQ(unions.groups[1].share(), 0.5);
  EXPECT_EQ(unions.groups[2].share(), 0.0);
}

TEST(ActiveUnions, RefuseOtherTensors) {
  const GuardedTensor wide(DType::i32, {2, 2});
  EXPECT_TRUE(throws_error([&] { count_unions(wide.view()); },
                           "active is i32 [2, 2] on cpu; expected u8 [tokens, neurons]"));
  const GuardedTensor flat(DType::u8, {2});
  EXPECT_TRUE(throws_error([&] { count_unions(flat.view()); }, "active is u8 [2] on cpu"));
}

}  // namespace
}  // namespace sparsellm
