#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/activation.h"
#include "models/weights/shares.h"

namespace sparsellm {

// What the builder of a model asks for as one linear layer: one layer of a checkpoint, or several
// with the same input that are joined by rows. It says how ranks may share it; which part is a
// rank's follows from that, its number and the degree alone.
struct WeightRequest {
  enum class Split : uint8_t {
    none,  // every rank has all of it
    out,   // the rows of each part and of its bias, before parts are joined
    in,    // the columns: the ranks' products have to be added up. The bias is rank 0's alone
  };
  enum class Bias : uint8_t { no, yes };

  // "<module>.weight" [out, in] and "<module>.bias" [out].
  struct Part {
    std::string module;
    int64_t out = 0;
  };
  std::vector<Part> parts;  // at least one
  int64_t in = 0;
  Split split = Split::none;
  // Of the rows or columns that are split. Above 0: only multiples belong together, the head
  // dimension of attention, shared as shared_heads() says; else by shared_elements().
  int64_t unit = 0;
  Bias bias = Bias::no;
  Activation activation = {};  // what the products end with
};

// The rows of a part that has `out` of them, and the columns, that a rank has.
inline Range share_of(int64_t size, int64_t unit, const Shard& shard) {
  if (unit == 0) {
    return shared_elements(size, shard);
  }
  const Range units = shared_heads(size / unit, shard);
  return {.begin = units.begin * unit, .count = units.count * unit};
}
inline Range rows_of(const WeightRequest& request, int64_t out, const Shard& shard) {
  return request.split == WeightRequest::Split::out ? share_of(out, request.unit, shard)
                                                    : Range{.begin = 0, .count = out};
}
inline Range columns_of(const WeightRequest& request, const Shard& shard) {
  return request.split == WeightRequest::Split::in ? share_of(request.in, request.unit, shard)
                                                   : Range{.begin = 0, .count = request.in};
}
// With columns that are split rank 0 alone has the bias, so that the sum has it once.
inline bool has_bias(const WeightRequest& request, const Shard& shard) {
  return request.bias == WeightRequest::Bias::yes &&
         (request.split != WeightRequest::Split::in || shard.rank == 0);
}

}  // namespace sparsellm
