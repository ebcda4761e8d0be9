#include "kernels/base/op_states.h"

#include <gtest/gtest.h>

namespace sparsellm {
namespace {

struct Counted {
  static inline int alive = 0;
  Counted() { ++alive; }
  ~Counted() { --alive; }
  int value = 7;
};
struct Other {
  int value = 1;
};

TEST(OpStates, OneObjectOfATypeFromTheFirstUseToTheEnd) {
  Counted::alive = 0;
  {
    OpStates states;
    EXPECT_EQ(Counted::alive, 0);
    Counted& first = states.of<Counted>();
    EXPECT_EQ(Counted::alive, 1);
    EXPECT_EQ(first.value, 7);
    first.value = 8;
    EXPECT_EQ(states.of<Other>().value, 1);
    EXPECT_EQ(&states.of<Counted>(), &first);
    EXPECT_EQ(states.of<Counted>().value, 8);
    EXPECT_EQ(Counted::alive, 1);
  }
  EXPECT_EQ(Counted::alive, 0);
}

TEST(OpStates, EveryObjectHasItsOwn) {
  OpStates a;
  OpStates b;
  a.of<Other>().value = 2;
  EXPECT_EQ(b.of<Other>().value, 1);
}

}  // namespace
}  // namespace sparsellm
