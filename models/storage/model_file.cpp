#include "models/storage/model_file.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/base/crc32c.h"
#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "kernels/base/mapped_file.h"
#include "models/storage/stored_names.h"
#include "sparse/join_parts.h"
#include "sparse/registry.h"

namespace sparsellm {
namespace {

bool is_known_format(std::string_view name) {
  const auto formats = weight_formats();
  return std::any_of(formats.begin(), formats.end(),
                     [&](const WeightFormat* format) { return format->name() == name; });
}

// Whether a name has the form of a part of an encoding, "<module>.weight.<format>.<part>".
bool looks_like_part(std::string_view name) {
  constexpr std::string_view kWeight = ".weight.";
  const size_t weight = name.rfind(kWeight);
  if (weight == std::string_view::npos) {
    return false;
  }
  name.remove_prefix(weight + kWeight.size());
  const size_t dot = name.find('.');
  return dot != std::string_view::npos && is_known_format(name.substr(0, dot));
}

bool is_aligned(std::span<const std::byte> bytes, int64_t unit) {
  return reinterpret_cast<uintptr_t>(bytes.data()) % static_cast<uintptr_t>(unit) == 0;
}

uint32_t checksum_of(const MappedFile& file, std::span<const std::byte> bytes,
                     std::span<std::byte> buffer) {
  uint32_t checksum = 0;
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), buffer.size()));
    file.read(piece, buffer.data());
    checksum = crc32c(buffer.first(piece.size()), checksum);
    bytes = bytes.subspan(piece.size());
  }
  return checksum;
}

// An entry of the metadata; nullptr if there is none.
const std::string* entry(const SafetensorsFile& file, std::string_view key) {
  const auto found = file.metadata().find(std::string(key));
  return found == file.metadata().end() ? nullptr : &found->second;
}

void require_checksum(const SafetensorsFile& file, std::string_view name,
                      const StoredTensor& tensor, const std::string& expected,
                      std::span<std::byte> buffer) {
  require(expected == checksum_text(checksum_of(file.file(), tensor.bytes, buffer)),
          "{} is damaged: the tensor {} does not have the checksum {}", file.path().string(),
          quote(name), quote(expected));
}

}  // namespace

ModelFile::ModelFile(const Checkpoint& checkpoint)
    : checkpoint_(&checkpoint), manifest_(read_manifest(checkpoint.directory())) {
  std::vector<const SafetensorsFile*> files;  // those that sparsellm-convert wrote
  for (const SafetensorsFile& file : checkpoint.files()) {
    const auto version = file.metadata().find(std::string(kVersionKey));
    if (version != file.metadata().end()) {
      require(version->second == kMetadataVersion,
              "{} has the version {} of this kind of file; supported is {}", file.path().string(),
              quote(version->second), kMetadataVersion);
      files.push_back(&file);
    }
  }
  check_conversion(files);
  for (const SafetensorsFile* file : files) {
    read_weights(*file);
  }
  for (const SafetensorsFile* file : files) {
    check_names(*file);
  }
}

std::string ModelFile::describe(std::string_view stored_name) const {
  return fmt::format("{}: the weight {}", checkpoint_->directory().string(), quote(stored_name));
}

void ModelFile::read_weights(const SafetensorsFile& file) {
  for (const auto& [name, text] : file.metadata()) {
    if (!is_weight_key(name)) {
      continue;
    }
    StoredWeight stored;
    stored.weight.header = parse_encoded_header(text, describe(name));
    stored.weight.file = &file.file();
    const std::string& format = stored.weight.header.format;
    require(is_known_format(format), "{} has the unknown format {}; known are {}", describe(name),
            quote(format), weight_format_names());
    require(checkpoint_->find(name) == nullptr, "{} is there twice, plain and in the format {}",
            describe(name), format);

    const std::string prefix = part_prefix(name, format);
    const auto& tensors = file.tensors();
    for (auto part = tensors.lower_bound(prefix);
         part != tensors.end() && part->first.starts_with(prefix); ++part) {
      const std::string_view part_name = std::string_view(part->first).substr(prefix.size());
      require(part_name.find('.') == std::string_view::npos && !parts_.contains(part->first),
              "{} has the tensor {}, which is no part of it", describe(name), quote(part->first));
      stored.parts.push_back({.name = part_name, .tensor = &part->second});
      stored.weight.bytes += std::ssize(part->second.bytes);
      stored.weight.tensors.push_back(part->first);
      parts_.insert(part->first);
    }
    require(!stored.parts.empty(), "{} has no tensors {}*", describe(name), quote(prefix));
    std::sort(stored.parts.begin(), stored.parts.end(),
              [](const StoredPart& a, const StoredPart& b) {
                return std::pair(a.tensor->bytes.data(), a.tensor->bytes.size()) <
                       std::pair(b.tensor->bytes.data(), b.tensor->bytes.size());
              });
    require(weights_.emplace(name, std::move(stored)).second, "{} is there twice, in two files",
            describe(name));
  }
  for (const auto& [name, tensor] : file.tensors()) {
    if (name.starts_with(kPaddingPrefix)) {
      parts_.insert(name);
    }
  }
}

void ModelFile::check_names(const SafetensorsFile& file) const {
  for (const auto& [name, tensor] : file.tensors()) {
    require(parts_.contains(name) || !looks_like_part(name),
            "{}: the tensor {} is a part of a weight that the metadata does not mention",
            file.path().string(), quote(name));
  }
}

bool ModelFile::is_padding(std::string_view stored_name) const {
  return stored_name.starts_with(kPaddingPrefix) && is_part(stored_name);
}

std::vector<std::string> ModelFile::weight_names() const {
  std::vector<std::string> names;
  for (const auto& [name, stored] : weights_) {
    names.push_back(name);
  }
  return names;
}

const ModelFile::Weights::value_type* ModelFile::lookup(std::string_view weight_name) const {
  for (std::string_view name : stored_names(weight_name)) {
    const auto found = weights_.find(name);
    if (found != weights_.end()) {
      return &*found;
    }
  }
  return nullptr;
}

const ModelFile::Weight* ModelFile::find(std::string_view weight_name) const {
  const auto* found = lookup(weight_name);
  return found == nullptr ? nullptr : &found->second.weight;
}

std::string ModelFile::stored_name(std::string_view weight_name) const {
  const auto* found = lookup(weight_name);
  return found == nullptr ? std::string() : found->first;
}

std::optional<EncodedWeight> ModelFile::encoded(std::string_view weight_name) const {
  ThreadPool caller(1);
  return encoded(weight_name, caller);
}

std::optional<EncodedWeight> ModelFile::encoded(std::string_view weight_name,
                                                ThreadPool& threads) const {
  std::optional<EncodedWeight> weight = unchecked(weight_name);
  if (weight.has_value()) {
    const auto& [name, stored] = *lookup(weight_name);
    read_and_validate({.weight = &*weight, .name = describe(name), .file = stored.weight.file},
                      threads);
  }
  return weight;
}

std::optional<EncodedWeight> ModelFile::unchecked(std::string_view weight_name) const {
  const auto* found = lookup(weight_name);
  if (found == nullptr) {
    return std::nullopt;
  }
  const auto& [name, stored] = *found;
  const EncodedHeader& header = stored.weight.header;
  EncodedWeight weight{.format = header.format,
                       .version = header.version,
                       .dtype = header.dtype,
                       .rows = header.rows,
                       .columns = header.columns,
                       .nonzeros = header.nonzeros,
                       .parts = {}};
  for (const auto& [part_name, tensor] : stored.parts) {
    const std::optional<DType> dtype = dtype_of_safetensors(tensor->dtype);
    require(dtype.has_value(), "{}: the part {} is {}", describe(name), quote(part_name),
            tensor->dtype);
    require(tensor->shape.size() == 1, "{}: the part {} has {} dimensions; expected 1",
            describe(name), quote(part_name), tensor->shape.size());
    EncodedPart part{
        .name = std::string(part_name), .dtype = *dtype, .bytes = tensor->bytes, .memory = {}};
    if (!is_aligned(tensor->bytes, size_of(*dtype))) {
      take_into_memory(part, stored.weight.file);
    }
    weight.parts.push_back(std::move(part));
  }
  return weight;
}

// Files that were exchanged one by one would be a model that nobody made.
void ModelFile::check_conversion(std::span<const SafetensorsFile* const> files) const {
  const auto id_of = [](const SafetensorsFile& file) {
    const std::string* const id = entry(file, kConversionKey);
    return id != nullptr ? *id : std::string("none");
  };
  for (const SafetensorsFile* file : files) {
    require(id_of(*file) == id_of(*files.front()),
            "{} and {} are of two conversions: their ids are {} and {}",
            files.front()->path().string(), file->path().filename().string(),
            quote(id_of(*files.front())), quote(id_of(*file)));
  }
  if (manifest_) {
    const std::string path = (checkpoint_->directory() / kManifestName).string();
    const SafetensorsFile& first = checkpoint_->files().front();
    require(
        files.size() == checkpoint_->files().size() && id_of(first) == manifest_->id,
        "{} is of another conversion than the weights beside it: its id is {}, that of {} is {}",
        path, manifest_->id, first.path().filename().string(), quote(id_of(first)));
  }
}

void ModelFile::require_undamaged_headers() const {
  for (const SafetensorsFile& file : checkpoint_->files()) {
    const std::string* const expected = entry(file, kHeaderChecksumKey);
    require(expected == nullptr ||
                *expected == checksum_text(header_checksum(file.tensors(), file.metadata())),
            "{} is damaged: its header does not have the checksum {}", file.path().string(),
            quote(expected != nullptr ? *expected : ""));
  }
}

void ModelFile::require_undamaged(std::string_view stored_name) const {
  for (const SafetensorsFile& file : checkpoint_->files()) {
    const auto tensor = file.tensors().find(stored_name);
    const std::string* const expected = entry(file, checksum_key(stored_name));
    if (tensor != file.tensors().end() && expected != nullptr) {
      constexpr size_t kPieceBytes = 1 << 18;  // which stay in the cache
      std::vector<std::byte> buffer(std::min(tensor->second.bytes.size(), kPieceBytes));
      require_checksum(file, stored_name, tensor->second, *expected, buffer);
    }
  }
}

void ModelFile::verify_manifest() const {
  const OpenDirectory& directory = checkpoint_->directory();
  std::map<std::string, const SafetensorsFile*> weights;
  for (const SafetensorsFile& file : checkpoint_->files()) {
    const std::string name = file.path().filename().string();
    require(manifest_->files.contains(name), "{} is not in {}", file.path().string(),
            kManifestName);
    weights[name] = &file;
  }
  for (const auto& [name, expected] : manifest_->files) {
    const InputFile input = directory / name;
    require(is_there(input), "{} is missing; {} names it", input.string(), kManifestName);
    const MappedFile file(input);
    const auto found = weights.find(name);
    const std::string* const of_header =
        found != weights.end() ? entry(*found->second, kHeaderChecksumKey) : nullptr;
    std::vector<std::byte> buffer(1 << 16);
    require(file.size() == expected.bytes &&
                (of_header != nullptr
                     ? *of_header
                     : checksum_text(checksum_of(file, file.bytes(), buffer))) == expected.crc32c,
            "{} is damaged, or was changed: it has not the size and the checksum that {} has",
            input.string(), kManifestName);
  }
}

std::string ModelFile::verify(const VerifyProgress& progress) const {
  std::vector<std::byte> buffer(1 << 20);
  const int64_t total = checkpoint_->bytes();
  int64_t done = 0;
  for (const SafetensorsFile& file : checkpoint_->files()) {
    require(entry(file, kHeaderChecksumKey) != nullptr,
            "{} has no checksums; only sparsellm-convert writes them", file.path().string());
  }
  require_undamaged_headers();
  for (const SafetensorsFile& file : checkpoint_->files()) {
    std::vector<std::pair<const StoredTensor*, const std::string*>> tensors;  // and their names
    for (const auto& [name, tensor] : file.tensors()) {
      tensors.emplace_back(&tensor, &name);
    }
    std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
      return a.first->bytes.data() < b.first->bytes.data();
    });
    for (const auto& [tensor, name] : tensors) {
      const std::string* const expected = entry(file, checksum_key(*name));
      require(expected != nullptr, "{}: the tensor {} has no checksum", file.path().string(),
              quote(*name));
      require_checksum(file, *name, *tensor, *expected, buffer);
      done += std::ssize(tensor->bytes);
      if (progress) {
        progress(done, total);
      }
    }
  }
  if (manifest_) {
    verify_manifest();
    return {};
  }
  return fmt::format(
      "{} has no {}: the tensors were compared with their checksums, but config and tokenizer "
      "files "
      "have none",
      checkpoint_->directory().string(), kManifestName);
}

}  // namespace sparsellm
