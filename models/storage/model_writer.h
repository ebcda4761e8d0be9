#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/storage/model_manifest.h"
#include "models/storage/output_directory.h"
#include "models/storage/safetensors.h"
#include "models/storage/shard_writer.h"
#include "sparse/encoded_weight.h"

namespace sparsellm {

struct ModelWriterOptions {
  OutputDirectory::Existing existing = OutputDirectory::Existing::refuse;
  std::filesystem::path input = {};         // which the output must not replace
  int64_t max_shard_bytes = 5'000'000'000;  // of the tensors of a file
  // Room for the header of a file, some 300 bytes for each tensor. One that takes more is possible,
  // but then the file is copied once more.
  int64_t header_bytes = 1 << 16;
};

// Writes a Hugging Face style directory with a converted model. It is not there before finish()
// (OutputDirectory says how), and without it nothing is left. Tensors are written as they come; a
// file is as large as max_shard_bytes allows, the parts of an encoding stay in one file, and a
// larger tensor has a file of its own. What the metadata holds stands in
// models/storage/model_metadata.h, the manifest of all files in models/storage/model_manifest.h.
// Every method throws Error that names the file and the reason (disk full, a name that is taken).
class ModelWriter {
 public:
  ModelWriter(const std::filesystem::path& output, ModelWriterOptions options);

  // A tensor as it is in a checkpoint. Its bytes, if they are mapped, stay in memory: release_pages
  // is left to the caller.
  void add(const std::string& name, const StoredTensor& tensor);
  // A weight of at least one element.
  void add(const std::string& weight_name, const EncodedWeight& weight);

  // Other files of the model, of which config.json has to be one. Those that hold tensors are
  // refused.
  void copy_file(const InputFile& from);
  void write_text(const std::string& name, std::string_view text);

  // Makes everything durable and gives the directory its name. Before that `check`, if it is there,
  // is called with the directory in which the complete model is; if it throws, nothing is left.
  void finish(const std::function<void(const std::filesystem::path& complete)>& check = {});

  int64_t tensor_bytes() const { return finished_bytes_ + (shard_ ? shard_->data_bytes() : 0); }

 private:
  struct Piece {  // a tensor
    int64_t item_bytes = 0;
    int64_t bytes = 0;
  };
  ShardWriter& shard_for(std::span<const Piece> pieces);
  void finish_shard();
  void claim(const std::string& name);
  void write_file(const std::string& name, std::span<const std::byte> bytes);
  void write_index();
  void write_manifest();
  std::filesystem::path shard_path(int64_t number) const;  // until it has its name
  template <class Body>
  void writing(Body&& body) const;

  ModelWriterOptions options_;
  OutputDirectory directory_;
  std::optional<ShardWriter> shard_;
  int64_t shards_ = 0;  // the open one included
  int64_t finished_bytes_ = 0;
  bool has_config_ = false;
  std::map<std::string, ModelManifest::File, std::less<>> files_;  // other than shards
  std::vector<ShardWriter::Finished> finished_shards_;
  std::set<std::string> claimed_;            // names of tensors and of encoded weights
  std::map<std::string, int64_t> shard_of_;  // of the tensors of finished shards
};

}  // namespace sparsellm
