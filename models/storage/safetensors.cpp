#include "models/storage/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "kernels/base/lfs_pointer.h"
#include "models/storage/safetensors_header.h"
#include "models/storage/safetensors_index.h"

namespace sparsellm {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are used as they are stored");

struct StoredType {
  std::string_view name;
  int64_t bits;
};

// The types of the format (safetensors 0.8) that have no DType: no op and no encoding has them.
constexpr std::array kOtherTypes{
    StoredType{"BOOL", 8},        StoredType{"F4", 4},      StoredType{"F6_E2M3", 6},
    StoredType{"F6_E3M2", 6},     StoredType{"I8", 8},      StoredType{"F8_E5M2", 8},
    StoredType{"F8_E4M3", 8},     StoredType{"F8_E8M0", 8}, StoredType{"F8_E4M3FNUZ", 8},
    StoredType{"F8_E5M2FNUZ", 8}, StoredType{"I16", 16},    StoredType{"C64", 64},
    StoredType{"F64", 64},        StoredType{"I64", 64},
};

// The tensors must cover `data` exactly.
void check_coverage(const StoredTensors& tensors, std::span<const std::byte> data,
                    const std::string& source) {
  struct Extent {
    const std::byte* begin;
    size_t bytes;
    const std::string* name;
  };
  std::vector<Extent> extents;
  for (const auto& [name, tensor] : tensors) {
    extents.push_back({tensor.bytes.data(), tensor.bytes.size(), &name});
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.bytes < b.bytes;
  });
  const std::byte* covered = data.data();
  for (const Extent& extent : extents) {
    require(extent.begin >= covered, "{}: tensor {} overlaps the tensor in front of it", source,
            quote(*extent.name));
    require(extent.begin == covered, "{}: {} bytes in front of tensor {} belong to no tensor",
            source, extent.begin - covered, quote(*extent.name));
    covered = extent.begin + extent.bytes;
  }
  const std::byte* end = data.data() + data.size();
  require(covered == end, "{}: {} bytes after the last tensor belong to no tensor", source,
          end - covered);
}

bool has_pytorch_weights(const OpenDirectory& directory) {
  const std::vector<std::string> names = directory.names();
  return std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return name.starts_with("pytorch_model") && name.ends_with(".bin");
  });
}

}  // namespace

std::optional<int64_t> stored_item_bits(std::string_view dtype) {
  if (const std::optional<DType> known = dtype_of_safetensors(dtype)) {
    return 8 * size_of(*known);
  }
  const auto* type = std::find_if(kOtherTypes.begin(), kOtherTypes.end(),
                                  [&](const StoredType& t) { return t.name == dtype; });
  return type == kOtherTypes.end() ? std::nullopt : std::optional(type->bits);
}

DType StoredTensor::float_dtype(std::string_view what) const {
  const std::optional<DType> known = dtype_of_safetensors(dtype);
  require(known && is_floating(*known), "{} has the dtype {}; supported are F32, F16 and BF16",
          what, dtype);
  return *known;
}

SafetensorsFile::SafetensorsFile(const InputFile& file) : file_(file) {
  const std::string source = file.string();
  const std::span<const std::byte> bytes = file_.bytes();
  uint64_t header_bytes = 0;
  require_no_lfs_pointer(file.path(), {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  require(bytes.size() >= sizeof(header_bytes), "{}: {} bytes are too few for a safetensors file",
          source, bytes.size());
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  require(header_bytes <= uint64_t{kMaxHeaderBytes},
          "{}: the header has {} bytes; at most {} are read; is it a safetensors file?", source,
          header_bytes, kMaxHeaderBytes);
  require(header_bytes <= bytes.size() - sizeof(header_bytes),
          "{}: the header has {} bytes, but the file only {}; it is cut off or damaged", source,
          header_bytes, bytes.size());
  const auto text = bytes.subspan(sizeof(header_bytes), static_cast<size_t>(header_bytes));
  const auto data = bytes.subspan(sizeof(header_bytes) + text.size());

  SafetensorsHeader header = read_safetensors_header(
      {reinterpret_cast<const char*>(text.data()), text.size()}, source, data);
  tensors_ = std::move(header.tensors);
  metadata_ = std::move(header.metadata);
  check_coverage(tensors_, data, source);
  file_.require_intact();
}

Checkpoint::Checkpoint(const OpenDirectory& directory) : directory_(directory) {
  const std::string source = directory.string();
  const InputFile single = directory / "model.safetensors";
  const InputFile index = directory / "model.safetensors.index.json";
  if (is_there(single)) {
    files_.emplace_back(single);
  } else if (is_there(index)) {
    for (const auto& [shard, names] : read_safetensors_index(index)) {
      require(is_there(directory / shard), "{} names the shard {}, which is not there",
              index.string(), quote(shard));
      const SafetensorsFile& file = files_.emplace_back(directory / shard);
      for (const std::string& name : names) {
        require(file.tensors().contains(name), "{} promises tensor {}, which is not in {}",
                index.string(), quote(name), quote(shard));
      }
    }
  } else {
    require(!has_pytorch_weights(directory),
            "{} has its weights only as pytorch_model*.bin; convert them with "
            "tools/bin_to_safetensors.py",
            source);
    fail("{} has no weights: neither model.safetensors nor model.safetensors.index.json is there",
         source);
  }

  for (const SafetensorsFile& file : files_) {
    for (const auto& [name, tensor] : file.tensors()) {
      require(tensors_.emplace(name, &tensor).second, "{}: tensor {} is in another shard, too",
              file.path().string(), quote(name));
      bytes_ += std::ssize(tensor.bytes);
    }
  }
}

void Checkpoint::require_intact() const {
  for (const SafetensorsFile& file : files_) {
    file.file().require_intact();
  }
}

const StoredTensor* Checkpoint::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : found->second;
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) {
    names.push_back(name);
  }
  return names;
}

const MappedFile* Checkpoint::find_file(std::span<const std::byte> bytes) const {
  for (const SafetensorsFile& file : files_) {
    if (is_inside(bytes, file.file().bytes())) {
      return &file.file();
    }
  }
  return nullptr;
}

const MappedFile& Checkpoint::file_of(std::span<const std::byte> bytes) const {
  const MappedFile* const file = find_file(bytes);
  require(file != nullptr, "{}: {} bytes belong to none of the files", directory_.string(),
          bytes.size());
  return *file;
}

}  // namespace sparsellm
