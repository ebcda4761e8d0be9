#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace sparsellm {

// The weight of a linear layer of a block, as it was loaded.
struct BlockWeight {
  int64_t block = 0;
  std::string name = {};  // DecoderLayer::linears()
  int64_t out = 0;
  int64_t in = 0;
  std::string format = {};
  int64_t bytes = 0;                     // that a product reads
  std::optional<int64_t> nonzeros = {};  // where the encoding counts them

  // The share of nonzeros.
  std::optional<double> density() const {
    const int64_t elements = out * in;
    return nonzeros && elements > 0
               ? std::optional(static_cast<double>(*nonzeros) / static_cast<double>(elements))
               : std::nullopt;
  }
};

}  // namespace sparsellm
