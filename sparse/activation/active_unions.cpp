#include "sparse/activation/active_unions.h"

#include <algorithm>
#include <vector>

#include "kernels/base/error.h"

namespace sparsellm {

double ActiveUnions::Group::share() const {
  return neurons == 0 ? 0.0 : static_cast<double>(active) / static_cast<double>(neurons);
}

void ActiveUnions::add(const ActiveUnions& other) {
  for (size_t i = 0; i < groups.size(); ++i) {
    groups[i].neurons += other.groups[i].neurons;
    groups[i].active += other.groups[i].active;
  }
}

ActiveUnions count_unions(const Tensor& active) {
  require(active.rank() == 2 && active.dtype() == DType::u8 && !active.device().is_cuda(),
          "unions of active neurons: active is {} {} on {}; expected u8 [tokens, neurons] on cpu",
          name_of(active.dtype()), active.shape_string(), to_string(active.device()));
  const int64_t neurons = active.size(1);
  ActiveUnions unions;
  const auto add = [neurons](const uint8_t* flags, ActiveUnions::Group& group) {
    group.neurons += neurons;
    group.active += neurons - std::count(flags, flags + neurons, uint8_t{0});
  };
  // A group of 2^k tokens is the union of two of 2^(k-1): pending[k - 1] is the first of them while
  // the second is not there yet.
  std::array<std::vector<uint8_t>, ActiveUnions::kSizes> pending;
  for (int64_t t = 0; t < active.size(0); ++t) {
    const uint8_t* const row = active.row<uint8_t>(t);
    std::vector<uint8_t> group(row, row + neurons);
    add(row, unions.groups[0]);
    // Bits of t that are 1 stand for groups that wait for this one.
    size_t size = 0;
    for (; size + 1 < pending.size() && (t >> size & 1) != 0; ++size) {
      std::transform(group.begin(), group.end(), pending[size].begin(), group.begin(),
                     [](uint8_t a, uint8_t b) { return static_cast<uint8_t>(a | b); });
      add(group.data(), unions.groups[size + 1]);
    }
    pending[size] = std::move(group);
  }
  return unions;
}

}  // namespace sparsellm
