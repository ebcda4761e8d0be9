#include "models/weights/shares.h"

#include <algorithm>

namespace sparsellm {

Range shared_heads(int64_t heads, const Shard& shard) {
  if (heads < shard.degree) {
    return {.begin = shard.rank * heads / shard.degree, .count = 1};
  }
  const int64_t count = heads / shard.degree;
  return {.begin = shard.rank * count, .count = count};
}

Range shared_elements(int64_t size, const Shard& shard) {
  // Whole steps; what is less than one belongs to the last of them, or is one where there are not
  // enough for all ranks.
  const int64_t steps =
      size < kShareStep * shard.degree ? (size + kShareStep - 1) / kShareStep : size / kShareStep;
  const int64_t fewest = steps / shard.degree;
  const int64_t more = steps % shard.degree;  // ranks that have one more
  const auto begin_of = [&](int64_t rank) {
    return std::min(size, kShareStep * (fewest * rank + std::min(rank, more)));
  };
  const int64_t begin = begin_of(shard.rank);
  const int64_t end = shard.rank + 1 == shard.degree ? size : begin_of(shard.rank + 1);
  return {.begin = begin, .count = end - begin};
}

std::vector<int64_t> share_borders(int64_t size, int64_t degree) {
  std::vector<int64_t> borders;
  for (int64_t rank = 0; rank < degree; ++rank) {
    borders.push_back(shared_elements(size, {.rank = rank, .degree = degree}).begin);
  }
  borders.push_back(size);
  return borders;
}

}  // namespace sparsellm
