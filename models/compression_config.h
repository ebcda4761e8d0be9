#pragma once

#include "kernels/base/json_reader.h"

namespace sparsellm {

// What the "quantization_config" of a config.json says of weights that the library
// compressed-tensors has pruned, quantised, or both. The tensors themselves tell in which form each
// weight is stored, and which ones the list "ignore" left out (models/storage/bitmask_weight.h,
// quantized_weight.h). The config only tells whether the checkpoint has anything that is not
// supported.
struct Compression {
  bool quantizes = false;  // weights, activations or the KV cache
  // Activations or the KV cache are quantised, which the engine does not do.
  bool drops_activations = false;
};

// `json` is absent, or written by this project (models/storage/sparse_config.h), which is checked,
// or by compressed-tensors. Throws Error of one line, with the key, for anything not supported:
//   other libraries; formats but dense, float-, int-, naive- and pack-quantized and, of sparse
//   weights, sparse-bitmask and sparse-24-bitmask; weights but e4m3 and i8 with scales of the
//   matrix or of its rows and, packed, of 4 bits with those of rows or of 32, 64 or 128 columns;
//   zero points; groups in the order of activations; transforms.
Compression read_compression(const JsonValue& json);

}  // namespace sparsellm
