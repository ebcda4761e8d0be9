#include "sparse/smallest_encoding.h"

#include <string>
#include <utility>

#include "sparse/registry.h"

namespace sparsellm {

std::optional<EncodedWeight> encode_smallest(const Tensor& w, int64_t nonzeros,
                                             ThreadPool& threads) {
  const WeightFormat* smallest = nullptr;
  int64_t fewest = w.bytes();
  for (const WeightFormat* format : weight_formats()) {
    const int64_t bytes = format->formula_bytes({.format = std::string(format->name()),
                                                 .version = format->version(),
                                                 .dtype = w.dtype(),
                                                 .rows = w.size(0),
                                                 .columns = w.size(1),
                                                 .nonzeros = nonzeros,
                                                 .parts = {}});
    if (bytes < fewest && format->why_not(w).empty()) {
      smallest = format;
      fewest = bytes;
    }
  }
  if (smallest == nullptr) {
    return std::nullopt;
  }
  EncodedWeight encoded = smallest->encode(w, threads);
  return encoded.bytes() < w.bytes() ? std::optional(std::move(encoded)) : std::nullopt;
}

}  // namespace sparsellm
