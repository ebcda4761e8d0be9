#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/calibrate.h"
#include "engine/conversion/convert.h"
#include "kernels/base/open_directory.h"
#include "kernels/base/parallel.h"
#include "models/config.h"
#include "models/linear_layers.h"
#include "models/storage/safetensors.h"
#include "models/weights/weight_store.h"
#include "sparse/quantize/quantized_matrix.h"

namespace sparsellm {

// The weight of a linear layer as it is to be stored; valid during the call that it is passed to.
struct PlannedWeight {
  const LinearLayer& layer;
  const LayerPlan& plan;
  const WeightStore::Stored& stored;  // in the input
  const Tensor& values;               // pruned, in the requested dtype
  int64_t stored_nonzeros;            // of the input
  bool changed;                       // by pruning, or by another dtype; else it is as in the input
  // The codes and scales that the values are of, where the input has some: those of pruned values
  // are 0. Else nullptr.
  const QuantizedMatrix* quantized;
  // The sum of squares before pruning, where that pruned and narrow values are planned.
  std::optional<double> squares;
  // The layer that it is a part of, with the density that pruning can be expected to leave.
  const WeightSize& joined;
};

// The model that is converted, read layer by layer: its linear layers are calibrated, converted to
// another dtype and pruned here. All methods throw Error that names the directory and the tensor.
class ConversionInput {
 public:
  // Throws Error for what can be known to be wrong before a tensor is read. `options` outlive this
  // object.
  explicit ConversionInput(const ConvertOptions& options);

  const OpenDirectory& directory() const { return directory_; }
  const ModelConfig& config() const { return config_; }
  const Checkpoint& checkpoint() const { return checkpoint_; }
  ThreadPool& threads() { return threads_; }
  // The tensor in words, with the directory: for messages.
  std::string describe(const std::string& tensor) const;

  // The tensors outside the linear layers of decoder blocks, without those that are left out
  // (models/foreign_tensors.h).
  std::vector<std::string> other_tensors() const;
  // What such a tensor is to be converted from, if it is.
  std::optional<DType> dtype_to_convert(const std::string& name) const;
  // Throws Error if it has values that are too large for its new dtype.
  void require_convertible(const std::string& name);
  // Compares checksums, where there are some: else damage would get new, right ones.
  void require_undamaged(const std::string& tensor) const;
  bool prunes() const;  // some layer
  // Whether weights are stored as compressed-tensors does it, with bitmasks or quantised.
  bool has_bitmasks() const;

  // Calls body for all linear layers, in order.
  void for_each_weight(const std::function<void(const PlannedWeight& weight)>& body);

  // `bytes` more of the input are done: options.poll and options.progress.
  void report(int64_t bytes, std::string_view next);

 private:
  bool wants_norms(const LayerPlan& plan) const;
  // Of the joined layer whose first part is the layer `first`.
  WeightSize joined_size(size_t first) const;
  std::unique_ptr<Calibrator> make_calibrator();
  OwnedTensor in_dtype(OwnedTensor stored, const std::string& name);
  // Of a layer, in the requested dtype; `quantized` receives what they are of, if they are
  // quantised.
  OwnedTensor values_of(size_t layer, std::optional<QuantizedMatrix>& quantized);
  // The layers [first, end), those of a block.
  void run_block(size_t first, size_t end, Calibrator* calibrator,
                 const std::function<void(const PlannedWeight& weight)>& body);

  const ConvertOptions& options_;
  OpenDirectory directory_;
  ModelConfig config_;
  Checkpoint checkpoint_;
  WeightStore store_;
  std::vector<LinearLayer> layers_;
  std::vector<size_t> joined_parts_;          // from each of the layers on; 0: it is no first part
  std::vector<LayerPlan> plans_;              // of the layers
  std::vector<WeightStore::Stored> stored_;   // of the layers
  std::set<std::string, std::less<>> taken_;  // tensors of the layers
  ThreadPool threads_;
  int64_t done_ = 0;
};

}  // namespace sparsellm
