#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/cuda_context.h"
#include "kernels/base/upload.h"
#include "models/storage/safetensors.h"
#include "models/weights/layer_formats.h"
#include "models/weights/load_progress.h"
#include "models/weights/weight_loader.h"
#include "models/weights/weight_store.h"
#include "sparse/format.h"

namespace sparsellm {

// The dtype of the weights that a CheckpointLoader makes; on the CPU, where every tensor keeps its
// own, the largest of them.
DType weight_dtype(const Checkpoint& checkpoint, Device device, std::optional<DType> dtype);

// In which format linear layers of decoder blocks are loaded.
struct WeightEncoding {
  // A name of sparse/registry.h, to which other weights are converted; empty: as each is stored,
  // and what only other programs know, dense.
  std::string format;
  int threads = 0;           // that convert; 0: usable_cores()
  LayerFormats layers = {};  // of these `format` says nothing
  // Of weights that are converted to tca_bme (sparse/records_choice.h).
  std::string records = {};
};

// Weights from a checkpoint. A name is looked up as given and with its leading "model." or
// "model.decoder." missing. Every method throws Error for a tensor that is missing, has another
// shape than asked for (both in the message) or is not f16, bf16 or f32. On the CPU the stored
// dtype is kept; on CUDA all tensors get activation_dtype().
class CheckpointLoader : public WeightLoader {
 public:
  // `dtype` is what a model on CUDA computes in; if absent, bf16 for a checkpoint with a bf16
  // tensor, else f16. `progress` is called in finish(), on its thread. The checkpoint outlives this
  // object. Throws Error for a dtype that the device does not compute in.
  CheckpointLoader(const Checkpoint& checkpoint, Device device, std::optional<DType> dtype,
                   LoadProgress progress, WeightEncoding encoding = {}, const Shard& shard = {});

  // For the CPU, where tensors keep the stored dtype: all but the weights of linear layers are
  // rounded to this one, as if they were stored so.
  void round_to(DType dtype) { rounded_to_ = dtype; }

  void require_all_used(std::span<const std::string_view> ignored) const override;
  // Throws Error that names the tensor if a finite number is too large for activation_dtype(), and
  // what `progress` throws; then nothing reads the checkpoint or writes to the tensors any more.
  void finish() override;
  std::unique_ptr<WeightLoader> shapes() const override;

 private:
  using Stored = WeightStore::Stored;

  // What finish() has to do on the CPU.
  struct HostCopy {
    Upload copy;
    Tensor to;
    bool transposes = false;          // `to` receives the transpose
    OwnedSignWords* signs = nullptr;  // of what is copied
  };

  // What is left to do on a CUDA device when a part has been uploaded.
  struct DeviceStep {
    OwnedTensor weight;  // that is transposed into `to`; or empty
    Tensor to;
    OwnedSignWords* signs = nullptr;  // of `to`
  };

  // Throws Error unless they are stored plainly, as asked for.
  std::vector<const StoredTensor*> find_plain(const Wanted& wanted);
  // Plainly stored tensors, which are copied in finish().
  OwnedTensor load(const Wanted& wanted) override;
  void pass_over(const Wanted& wanted) override;
  // A linear layer takes one of three routes: it stays dense; its parts are stored in the wanted
  // format, or encoded on the host, and loaded; or it is encoded on a CUDA device.
  std::unique_ptr<WeightMatrix> load_weight(const Wanted& wanted) override;
  OwnedTensor load_dense(const Wanted& wanted) override;
  OwnedTensor load_dense(const Wanted& wanted, std::span<const Stored> parts);
  std::unique_ptr<WeightMatrix> load_encoded(const Wanted& wanted, std::span<const Stored> parts,
                                             const WeightFormat& format);
  std::unique_ptr<WeightMatrix> encode_on_device(const Wanted& wanted,
                                                 std::span<const Stored> parts,
                                                 const WeightFormat& format);
  // The layout in which a layer's parts are encoded. A layout that was chosen for the layer comes
  // first. Without one, parts that are stored in the format, but in another dtype than the model
  // computes in, keep the layout that the part with the most rows has.
  LayoutOptions layout_in(const Wanted& wanted, const WeightFormat& format,
                          std::span<const Stored> parts) const;

  // Now or, where uploads come first, later.
  void transpose_later(const Wanted& wanted, Upload copy, const Tensor& to);
  OwnedTensor space_for(const Tensor& to, std::string_view purpose);
  void settle();  // all of steps_, whose uploads are done
  static Tensor part_of(const Wanted& wanted, size_t i, int64_t row, const Tensor& loaded);
  // Throws Error unless they are stored as asked for.
  std::vector<Stored> find(const Wanted& wanted);
  const StoredTensor& get(const std::string& name, const std::vector<int64_t>& shape);
  // Decodes the parts, one below the other, into `dense`, which has its values on return.
  void fill(const Wanted& wanted, std::span<const Stored> parts, const Tensor& dense);
  using PartSlice = std::optional<Slice>;  // nothing: all of it
  void expand_part(const std::string& name, const Stored& stored, const PartSlice& slice,
                   const Tensor& dense);
  void decode_part(const std::string& name, const Stored& stored, const PartSlice& slice,
                   const Tensor& dense);
  // Of what has been read or submitted of a part, as a share of its stored bytes.
  static int64_t read_bytes(const Wanted& wanted, size_t i, const Stored& stored);
  std::string describe(const std::string& name) const;
  // Counts bytes of the checkpoint that have been read or submitted, and reports.
  void count_loaded(int64_t bytes);
  void report();  // the bytes of the checkpoint that are loaded, to progress_
  LoadContext context();
  ThreadPool& threads();
  ExecContext& exec();
  Uploader& uploads();

  const Checkpoint* checkpoint_;
  WeightStore store_;
  WeightEncoding encoding_;
  LoadProgress progress_;
  std::optional<DType> rounded_to_;
  int64_t loaded_ = 0;                       // bytes of the checkpoint, with those submitted
  std::unique_ptr<ThreadPool> threads_;      // that convert weights, from their first use on
  std::unique_ptr<CudaContext> cuda_;        // that encodes weights, from its first use on
  std::unique_ptr<Workspace> workspace_;     // which that does not use
  std::optional<ExecContext> exec_;          // of both
  std::list<EncodedWeight> encoded_;         // that uploads_ copies from
  std::vector<HostCopy> copies_;             // for finish(), on the CPU
  std::set<std::string, std::less<>> used_;  // names in the checkpoint
  std::vector<DeviceStep> steps_;            // of uploads that are held
  std::vector<OwnedTensor> spare_;           // space of those that are done
  int64_t step_bytes_ = 0;                   // of their weights
  // To a CUDA device, from its first use on. The last, so that it goes before what it reads.
  std::unique_ptr<Uploader> uploads_;
};

}  // namespace sparsellm
