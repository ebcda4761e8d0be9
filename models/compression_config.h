#pragma once

#include "kernels/base/json_reader.h"

namespace sparsellm {

// What the "quantization_config" of a config.json says of weights that the library
// compressed-tensors has pruned, quantised, or both. In which form each weight is stored, and which
// ones are left out (its list "ignore"), is seen by the tensors
// (models/storage/bitmask_weight.h, quantized_weight.h): what is said here is only whether there is
// something in the checkpoint that is not supported.
struct Compression {
  bool quantizes = false;  // weights, activations or the KV cache
  // Activations or the KV cache, which the engine does not.
  bool drops_activations = false;
};

// `json` is absent, or this project's own (models/storage/sparse_config.h), which is checked, or
// that library's. Throws Error of one line, with the key, for what is not supported:
//   other libraries; formats but dense, float-, int-, naive- and pack-quantized and, of sparse
//   weights, sparse-bitmask and sparse-24-bitmask; weights but e4m3 and i8 with scales of the
//   matrix or of its rows and, packed, of 4 bits with those of rows or of 32, 64 or 128 columns;
//   zero points; groups in the order of activations; transforms.
Compression read_compression(const JsonValue& json);

}  // namespace sparsellm
