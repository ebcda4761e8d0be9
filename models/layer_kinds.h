#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/dtype.h"
#include "models/linear_layers.h"
#include "models/weights/layer_formats.h"
#include "sparse/choice/format_rules.h"

namespace sparsellm {

// What is known of a joined linear layer's weight before it is loaded.
struct LayerWeight {
  double density = 1.0;  // the share of nonzeros
  // The format that all its parts are stored in and can be loaded in as they are; empty: there is
  // none, and another format than dense is made of the decoded weight.
  std::string stored = {};
  int64_t stored_bytes = 0;  // of all its parts in that format; 0 if joined they have others
  std::string planned = {};  // the format that it has whatever is faster; empty: it is chosen
  std::string records = {};  // that it is encoded in if it comes to be in tca_bme, records_choice.h
  DType dtype = DType::f16;  // that it has on its device
  // Where the zeros of a random weight are: the patterns of its parts, each of them once
  // ("uniform", "rows:0"); empty: they are those of a checkpoint.
  std::string zeros = {};
};
using WeightOfLayer = std::function<LayerWeight(const JoinedLinear& layer)>;

// Linear layers that are alike: one of them is measured for all, and all get the same format. They
// agree in shape, bias, activation, dtype, stored and planned format, records, and places of random
// zeros, and their densities differ by no more than a spread.
struct LayerKind {
  JoinedLinear layer;                      // that stands for all: the one with the median density
  LayerWeight weight;                      // its
  std::vector<std::string> first_weights;  // of all, JoinedLinear::first_weight(); not sorted
  std::vector<LayerWeight> weights = {};   // of all, in the same order

  int64_t count() const { return std::ssize(first_weights); }
  WeightSize size() const {
    return {.rows = layer.rows, .columns = layer.columns, .density = weight.density};
  }
  int64_t dense_bytes() const { return layer.rows * layer.columns * size_of(weight.dtype); }
  // That all of them have if this format is chosen for them.
  LayerFormat in(std::string_view format) const;
};

// Bytes that one of them with this weight takes in a format on a device, as far as that is known
// before it is loaded.
int64_t expected_bytes(const LayerKind& kind, const LayerWeight& weight, const LayerFormat& in,
                       const Device& device);

// Some layers with 60 and some with 64 % zeros are one kind; times of a format change by less than
// formats differ.
inline constexpr double kDensitySpread = 0.05;

// In the order of their first layers; those that differ in the density alone by density.
std::vector<LayerKind> layer_kinds(std::span<const JoinedLinear> layers,
                                   const WeightOfLayer& weight_of, double spread = kDensitySpread);

// Blocks with layers of the same kinds: one of them stands for all.
struct AlikeBlocks {
  int64_t block = 0;  // the one in their middle
  int64_t count = 0;
};

// Of a model with these layers, all of which are of these kinds; in the order of their first
// blocks.
std::vector<AlikeBlocks> alike_blocks(std::span<const JoinedLinear> layers,
                                      std::span<const LayerKind> kinds);

}  // namespace sparsellm
