#include "sparse/smallest_encoding.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "sparse/dense/dense.h"
#include "sparse/registry.h"

namespace sparsellm {

std::optional<EncodedWeight> encode_smallest(const Tensor& w, int64_t nonzeros,
                                             ThreadPool& threads) {
  // An encoding is as large as its formula says, or a little larger: most need not be made.
  std::vector<std::pair<int64_t, const WeightFormat*>> candidates;
  for (const WeightFormat* format : weight_formats()) {
    if (format == &dense_format() || !format->why_not(w).empty()) {
      continue;
    }
    const EncodedWeight header{.format = std::string(format->name()),
                               .version = format->version(),
                               .dtype = w.dtype(),
                               .rows = w.size(0),
                               .columns = w.size(1),
                               .nonzeros = nonzeros,
                               .parts = {}};
    candidates.emplace_back(format->formula_bytes(header), format);
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::optional<EncodedWeight> best;
  int64_t fewest = w.bytes();
  for (const auto& [bytes, format] : candidates) {
    if (bytes >= fewest) {
      break;
    }
    EncodedWeight encoded = format->encode(w, threads);
    if (encoded.bytes() < fewest) {
      fewest = encoded.bytes();
      best = std::move(encoded);
    }
  }
  return best;
}

}  // namespace sparsellm
