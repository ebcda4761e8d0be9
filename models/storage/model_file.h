#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/parallel.h"
#include "models/storage/model_manifest.h"
#include "models/storage/model_metadata.h"
#include "models/storage/safetensors.h"
#include "sparse/encoded_weight.h"

namespace sparsellm {

// Bytes that are done, and all.
using VerifyProgress = std::function<void(int64_t done, int64_t total)>;

// The encoded weights of a model that sparsellm-convert wrote (models/storage/model_metadata.h says
// how they are stored); a plain checkpoint has none. All files have to be of one conversion. Its
// files may be hostile: every method throws Error of one line with the directory or file, and the
// weight or tensor.
class ModelFile {
 public:
  // What a file says of an encoded weight.
  struct Weight {
    EncodedHeader header;
    int64_t bytes = 0;                 // of all parts
    std::vector<std::string> tensors;  // that are its parts
    const MappedFile* file = nullptr;  // that has them
  };

  // Reads the metadata alone, not the weights. The checkpoint outlives this object. Throws Error
  // for an unknown version or format, a weight without parts or parts without a weight, one that is
  // there twice, encoded or plain.
  explicit ModelFile(const Checkpoint& checkpoint);

  // Names as they are stored, sorted.
  std::vector<std::string> weight_names() const;

  // A leading "model." or "model.decoder." of the name may be missing in the files. nullptr and
  // nullopt if there is no such encoded weight.
  const Weight* find(std::string_view weight_name) const;
  // The name under which an encoded weight is stored; empty if there is no such weight.
  std::string stored_name(std::string_view weight_name) const;
  // Directory and stored name, for messages.
  std::string describe(std::string_view stored_name) const;
  // Checked in full, so that its format can use it, in memory of its own. Throws Error for missing,
  // additional and wrong parts.
  std::optional<EncodedWeight> encoded(std::string_view weight_name) const;
  std::optional<EncodedWeight> encoded(std::string_view weight_name, ThreadPool& threads) const;
  // The same, of which WeightFormat::validate() has said nothing yet; parts that are aligned in the
  // mapped file are views of it. sparse/load_context.h has what formats load it by.
  std::optional<EncodedWeight> unchecked(std::string_view weight_name) const;

  // Whether a tensor of the checkpoint is a part of an encoding, or padding between tensors, and so
  // not for anybody else.
  bool is_part(std::string_view stored_name) const { return parts_.contains(stored_name); }

  // Whether it is padding, which belongs to no weight.
  bool is_padding(std::string_view stored_name) const;

  // Compares a tensor of the checkpoint with its checksum, if it has one. Throws Error that names
  // file and tensor.
  void require_undamaged(std::string_view stored_name) const;
  // The same for what the headers say of the tensors.
  void require_undamaged_headers() const;
  // Compares all tensors with their checksums, all that the headers say of them, and the files that
  // the manifest names. Throws Error that names the first file or tensor that is damaged, and for
  // files without checksums. Reads every byte, but keeps none in memory. Returns what could not be
  // compared, a line for the user; empty if there is nothing.
  std::string verify(const VerifyProgress& progress) const;

 private:
  struct StoredPart {
    std::string_view name;  // without the prefix
    const StoredTensor* tensor = nullptr;
  };
  struct StoredWeight {
    Weight weight;
    std::vector<StoredPart> parts;  // as they follow each other in the file
  };
  using Weights = std::map<std::string, StoredWeight, std::less<>>;

  void check_conversion(std::span<const SafetensorsFile* const> files) const;
  void verify_manifest() const;
  void read_weights(const SafetensorsFile& file);
  void check_names(const SafetensorsFile& file) const;
  const Weights::value_type* lookup(std::string_view weight_name) const;

  const Checkpoint* checkpoint_;
  std::optional<ModelManifest> manifest_;
  Weights weights_;
  std::set<std::string_view> parts_;  // views of the names in the checkpoint
};

}  // namespace sparsellm
