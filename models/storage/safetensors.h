#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/base/mapped_file.h"
#include "kernels/base/open_directory.h"

namespace sparsellm {

// A tensor as a safetensors file holds it; its bytes are a view of the mapped file, little-endian,
// row-major, not necessarily aligned.
struct StoredTensor {
  std::string dtype;           // the file's name for it: "F32", "F16", "BF16", "I64", "U8", ...
  std::vector<int64_t> shape;  // empty for a scalar
  std::span<const std::byte> bytes;

  // f32, f16 or bf16. Throws Error for any other stored dtype; the message begins with `what`, the
  // tensor in words.
  DType float_dtype(std::string_view what) const;
};

using StoredTensors = std::map<std::string, StoredTensor, std::less<>>;  // by name

// The bits of an element of a stored dtype; nothing for a name that the format does not have.
std::optional<int64_t> stored_item_bits(std::string_view dtype);

// A memory-mapped safetensors file: 8 bytes with the length of the header, the header in JSON, the
// data. The constructor checks every field that the file holds, so that each StoredTensor lies
// inside the mapping and has shape * item size bytes; tensors neither overlap nor leave holes.
// Throws Error that names the file and the tensor.
class SafetensorsFile {
 public:
  static constexpr int64_t kMaxHeaderBytes = 100'000'000;
  static constexpr int64_t kMaxRank = 8;

  explicit SafetensorsFile(const InputFile& file);

  const std::filesystem::path& path() const { return file_.path(); }
  const MappedFile& file() const { return file_; }
  const StoredTensors& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  MappedFile file_;
  StoredTensors tensors_;
  std::map<std::string, std::string> metadata_;
};

// The weights of a Hugging Face model directory: model.safetensors if it is there, else the shards
// that model.safetensors.index.json names. Every tensor of a file counts, also one that the index
// does not mention; the index must not promise more, and a name must not be in two shards. A
// directory with only pytorch_model*.bin gets an Error that names tools/bin_to_safetensors.py.
class Checkpoint {
 public:
  explicit Checkpoint(const OpenDirectory& directory);

  // nullptr if there is none.
  const StoredTensor* find(std::string_view name) const;
  std::vector<std::string> names() const;   // sorted
  int64_t bytes() const { return bytes_; }  // of all tensors
  // The file that a tensor's bytes are mapped from.
  const MappedFile& file_of(std::span<const std::byte> bytes) const;
  const MappedFile* find_file(std::span<const std::byte> bytes) const;  // nullptr if there is none
  std::span<const SafetensorsFile> files() const { return files_; }
  // Throws Error if a part of a file could not be read: what was computed from the tensors' bytes
  // is then wrong (MappedFile::require_intact()).
  void require_intact() const;
  const OpenDirectory& directory() const { return directory_; }

 private:
  OpenDirectory directory_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, const StoredTensor*, std::less<>> tensors_;
  int64_t bytes_ = 0;
};

}  // namespace sparsellm
