#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "models/weights/layer_formats.h"
#include "models/weights/load_progress.h"
#include "models/weights/random_weights.h"
#include "models/weights/weight_loader.h"
#include "models/weights/weight_store.h"

namespace sparsellm {

// In which formats the linear layers of a ShapeLoader are.
struct LinearShapes {
  const WeightStore* store = nullptr;  // where weights come from, as they are stored there
  std::string format = {};   // a name of sparse/registry.h, to which others are converted; or empty
  LayerFormats layers = {};  // of these `format` says nothing
  std::string records = {};  // of weights that are converted to tca_bme (WeightEncoding)
  std::optional<double> density = {};  // the share of nonzeros in weights that are converted
  // Without that: false: what they can be expected to take by their own densities; true: they are
  // encoded to see it.
  bool encodes = true;
  // Weights that a RandomLoader makes, in formats and with zeros of their own; then nothing above
  // is looked at.
  std::optional<RandomWeights> random = {};
  int threads = 0;             // that encode what density says nothing of; 0: usable_cores()
  LoadProgress progress = {};  // of that
};

// Weights without memory, for a decoder that is asked what it needs and never run: loaded_bytes(),
// and the decoder's kv_shape() and workspace_bytes(), of one rank's share. The device need not be
// there.
class ShapeLoader : public WeightLoader {
 public:
  // `dtype` is that of all weights; on CUDA also what the model computes in. Linear layers count
  // with what they take in the store (joined ones may come to some bytes less), or can be expected
  // to take in their format. Those that would be converted and whose density is not given, and
  // slices that are encoded anew, are read from the store and encoded, one after the other, as by
  // the converter, unless `linears` says otherwise; Error is thrown for what has no values or
  // cannot be encoded. Throws Error for a dtype that the device does not compute in, and for random
  // weights that cannot be.
  ShapeLoader(Device device, DType dtype, LinearShapes linears = {}, const Shard& shard = {});

  OwnedTensor constants(std::string_view what, std::span<const float> values) override;
  void reserve(int64_t) override {}

 protected:
  OwnedTensor load(const Wanted& wanted) override;
  std::unique_ptr<WeightMatrix> load_weight(const Wanted& wanted) override;
  // Sign words count with the most that they may take: less if no element is zero.
  OwnedTensor load_dense(const Wanted& wanted) override;

 private:
  // The share of nonzeros of a weight that is not stored as it will be; nothing if it is not known.
  std::optional<double> density_of(const std::string& weight) const;
  EncodedWeight encode(const std::string& name, const WeightStore::Stored& stored,
                       const std::optional<Slice>& slice, const LayoutOptions& layout,
                       const WeightFormat& format);
  // Of a part of a layer in this format; `layer`: the layer's first weight; `stored`: as which the
  // part is stored, nullptr if it is not.
  LayoutOptions layout_in(const std::string& format, const std::string& layer,
                          const WeightStore::Stored* stored) const;

  DType dtype_;
  LinearShapes linears_;
  std::unique_ptr<ThreadPool> threads_;  // that encode, from their first use on
  int64_t done_ = 0;                     // bytes of the store that were encoded
};

}  // namespace sparsellm
