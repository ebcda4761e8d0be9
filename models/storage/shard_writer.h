#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>

#include "models/storage/output_file.h"
#include "models/storage/safetensors.h"

namespace sparsellm {

// Writes one safetensors file of a converted model, tensor by tensor: the header, whose size is
// known only then, is written last, into room that is left for it in front of the data. Each tensor
// begins at a multiple of its elements' size. Every method throws Error naming the file.
class ShardWriter {
 public:
  // `number` is that of the file among those of the model. A header that turns out to need more
  // than `header_bytes` costs another pass over the data.
  ShardWriter(const std::filesystem::path& path, int64_t number, int64_t header_bytes);

  // The dtype must be one of safetensors, and the bytes those that the shape takes.
  void add(const std::string& name, const StoredTensor& tensor);
  void add_metadata(const std::string& key, const std::string& value);

  // Where a tensor begins that is added when there are `data_bytes`.
  static int64_t aligned(int64_t data_bytes, int64_t item_bytes) {
    return (data_bytes + item_bytes - 1) / item_bytes * item_bytes;
  }
  int64_t data_bytes() const { return data_bytes_; }
  // What was added, and what had to go between; without the bytes.
  const std::map<std::string, StoredTensor, std::less<>>& tensors() const { return tensors_; }

  struct Finished {
    int64_t bytes = 0;      // of the file
    std::string checksum;   // of its header
    int64_t id_offset = 0;  // where kConversionIdDigits zeros stand for the conversion's id
  };
  // Completes the file and makes it durable.
  Finished finish();

 private:
  void pad(int64_t alignment);
  void append(const std::string& name, const StoredTensor& tensor);
  std::string header() const;

  OutputFile file_;
  int64_t number_;
  int64_t data_begin_;
  int64_t data_bytes_ = 0;
  std::map<std::string, StoredTensor, std::less<>> tensors_;
  std::map<std::string, std::array<int64_t, 2>> offsets_;  // of each, from data_begin_
  std::map<std::string, std::string> metadata_;
};

}  // namespace sparsellm
