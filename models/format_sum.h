#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace sparsellm {

// What the weights of linear layers that are in one format come to.
struct FormatSum {
  std::string format;
  int64_t elements = 0;
  int64_t bytes = 0;
  int64_t dense_bytes = 0;          // that they would take as dense ones
  std::optional<int64_t> nonzeros;  // where the encoding counts them
};

}  // namespace sparsellm
