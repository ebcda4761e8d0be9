#pragma once

#include <optional>
#include <string_view>

#include "models/weights/weight_store.h"

namespace sparsellm {

// A stored weight, or a slice of it, encoded in another format than its own; as
// WeightStore::encode(), but narrow values (sparse/records_choice.h) of a slice are those of the
// whole weight: it is rounded with the scales of whole rows or groups, whatever columns the slice
// has, so that the ranks of a model have the weights of a single one. For that all columns are read
// where a row shares a scale, and whole groups where a group does. What is stored in the format
// with narrow values keeps its codes and scales if the options name no layout. Throws Error besides
// for columns of i4 that begin at no multiple of 32.
struct WeightToEncode {
  const WeightStore& store;
  std::string_view name;
  std::optional<Slice> slice = {};  // nothing: all of it
};

// Whether the host has to cut the slice for it to keep narrow values that are stored: a device
// would expand the weight, and encode values of 16 bits.
bool is_cut_on_host(const WeightToEncode& weight);

// Whether the host has to round the slice to the narrow values that the options name: with scales
// that it shares with columns of other ranks, whose weights are not on the device, or because the
// weight is stored with codes. No for options that name none.
bool is_rounded_on_host(const WeightToEncode& weight, const LayoutOptions& options);

EncodedWeight encode_slice(const WeightToEncode& weight, const WeightFormat& to, DType dtype,
                           const LayoutOptions& options, ThreadPool& threads);

}  // namespace sparsellm
