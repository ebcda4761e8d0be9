#include "sparse/smallest_encoding.h"

#include <utility>

#include "sparse/dense/dense.h"
#include "sparse/records_choice.h"

namespace sparsellm {

std::optional<EncodedWeight> encode_smallest(const Tensor& w,
                                             std::span<const WeightFormat* const> formats,
                                             ThreadPool& threads, std::string_view records) {
  std::optional<EncodedWeight> smallest;
  int64_t fewest = w.bytes();
  for (const WeightFormat* format : formats) {
    if (format == &dense_format() || !holds_values(format->name(), records) ||
        !format->why_not(w).empty()) {
      continue;
    }
    LayoutOptions options = records_in(format->name(), records);
    options.goal = LayoutFor::size;
    EncodedWeight encoded = format->encode(w, options, threads);
    if (encoded.bytes() < fewest) {
      fewest = encoded.bytes();
      smallest = std::move(encoded);
    }
  }
  return smallest;
}

}  // namespace sparsellm
