#pragma once

#include <array>
#include <cstdint>

#include "kernels/base/tensor.h"

namespace sparsellm {

// Of groups of 1, 2, 4, ... tokens of a batch, the neurons that are active for at least one of
// them: the rows of weights that the batch has to read.
struct ActiveUnions {
  static constexpr int kSizes = 6;  // groups of 1 to 32 tokens

  struct Group {
    int64_t tokens = 0;   // in a group
    int64_t neurons = 0;  // in all groups together
    int64_t active = 0;   // for at least one token of their group

    double share() const;  // active / neurons; 0 without any
  };
  std::array<Group, kSizes> groups{
      {{.tokens = 1}, {.tokens = 2}, {.tokens = 4}, {.tokens = 8}, {.tokens = 16}, {.tokens = 32}}};

  void add(const ActiveUnions& other);
};

// active u8 [tokens, neurons] on the CPU, whose rows are tokens of different sequences; not 0 is
// active. Neighbouring rows make groups: the first 2, the next 2, and so on; tokens that are left
// over at the end are in no group of that size. Throws Error for another tensor.
ActiveUnions count_unions(const Tensor& active);

}  // namespace sparsellm
