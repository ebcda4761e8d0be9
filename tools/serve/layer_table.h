#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/block_weight.h"

namespace sparsellm {

// Microseconds that a linear layer takes for some number of tokens; absent: they were not measured.
struct LayerTimes {
  int64_t tokens = 0;
  std::optional<double> us_sparse = {};  // in the layer's own format
  std::optional<double> us_dense = {};   // of the fastest that is dense
};

// A linear layer as GET /layers shows it.
struct LayerTableRow {
  BlockWeight weight;
  std::vector<LayerTimes> times = {};
  int64_t measured_block = 0;  // whose times they are: a block that is alike, or this one
};

// All linear layers of the blocks of a model; of several ranks, what rank 0 has of each.
struct LayerTable {
  int ranks = 1;
  std::vector<LayerTableRow> rows = {};  // block by block
};

LayerTable layer_table_of(std::vector<BlockWeight> weights, int ranks);

// The body of GET /layers:
//   {"model": ..., "rank": 0, "ranks": 1, "layers": [
//     {"block": 0, "name": "qkv", "out": 768, "in": 256, "density": 0.4, "format": "tca_bme",
//      "bytes": 81920, "times_of_block": 4,
//      "times": [{"tokens": 1, "us_sparse": 2.1, "us_dense": 3.0, "speedup": 1.43}]}]}
// density, and what is in times, is null if it is not known; without times, times_of_block and
// times are not there.
std::string layers_body(std::string_view model, const LayerTable& table);

}  // namespace sparsellm
