#include "models/storage/model_writer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>
#include <vector>

#include "kernels/base/crc32c.h"
#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "kernels/base/json_writer.h"
#include "kernels/base/mapped_file.h"
#include "models/storage/model_metadata.h"
#include "models/storage/output_file.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kConfig = "config.json";
constexpr std::string_view kShardPrefix = "shard-";

std::string final_name(int64_t number, int64_t count) {
  return count == 1 ? "model.safetensors"
                    : fmt::format("model-{:05}-of-{:05}.safetensors", number, count);
}

void require_file_name(const std::string& name) {
  constexpr std::string_view kForbidden("/\0", 2);
  require(!name.empty() && name != "." && name != ".." &&
              name.find_first_of(kForbidden) == std::string::npos,
          "{} is not the name of a file", quote(name));
  require(!name.ends_with(".safetensors") && !name.ends_with(".safetensors.index.json") &&
              !name.starts_with(kShardPrefix) && name != kManifestName,
          "the file {} would be taken for one that belongs to the tensors of the model",
          quote(name));
}

}  // namespace

ModelWriter::ModelWriter(const fs::path& output, ModelWriterOptions options)
    : options_(std::move(options)), directory_(output, options_.existing, options_.input) {
  require(options_.max_shard_bytes > 0, "files of at most {} bytes", options_.max_shard_bytes);
  require(options_.header_bytes >= 0 && options_.header_bytes <= SafetensorsFile::kMaxHeaderBytes,
          "room for a header of {} bytes; expected 0 to {}", options_.header_bytes,
          SafetensorsFile::kMaxHeaderBytes);
}

// On a full disk it helps to know what a killed run left behind.
template <class Body>
void ModelWriter::writing(Body&& body) const {
  try {
    body();
  } catch (const Error& error) {
    const bool is_full = std::string_view(error.what()).ends_with(std::strerror(ENOSPC));
    const fs::path left_over = is_full ? directory_.left_over() : fs::path();
    if (left_over.empty()) {
      throw;
    }
    fail("{}; another run left {}", error.what(), left_over.string());
  }
}

fs::path ModelWriter::shard_path(int64_t number) const {
  return directory_.partial_path() / fmt::format("{}{:05}", kShardPrefix, number);
}

ShardWriter& ModelWriter::shard_for(std::span<const Piece> pieces) {
  if (shard_ && shard_->data_bytes() > 0) {
    int64_t end = shard_->data_bytes();
    for (const Piece& piece : pieces) {
      end = ShardWriter::aligned(end, piece.item_bytes) + piece.bytes;
    }
    if (end > options_.max_shard_bytes) {
      finish_shard();
    }
  }
  if (!shard_) {
    shard_.emplace(shard_path(shards_ + 1), shards_ + 1, options_.header_bytes);
    ++shards_;
  }
  return *shard_;
}

void ModelWriter::finish_shard() {
  finished_shards_.push_back(shard_->finish());
  finished_bytes_ += shard_->data_bytes();
  for (const auto& [name, tensor] : shard_->tensors()) {
    shard_of_[name] = shards_;
  }
  shard_.reset();
}

void ModelWriter::claim(const std::string& name) {
  require(claimed_.insert(name).second, "{} has two tensors with the name {}",
          directory_.path().string(), quote(name));
}

void ModelWriter::add(const std::string& name, const StoredTensor& tensor) {
  claim(name);
  const Piece piece{
      .item_bytes = std::max<int64_t>(stored_item_bits(tensor.dtype).value_or(8) / 8, 1),
      .bytes = std::ssize(tensor.bytes)};
  writing([&] { shard_for({&piece, 1}).add(name, tensor); });
}

void ModelWriter::add(const std::string& weight_name, const EncodedWeight& weight) {
  require(is_weight_key(weight_name), "{} cannot be the name of an encoded weight",
          quote(weight_name));
  require(weight.rows > 0 && weight.columns > 0, "the weight {} has {} x {} elements",
          quote(weight_name), weight.rows, weight.columns);
  claim(weight_name);
  const std::string prefix = part_prefix(weight_name, weight.format);
  writing([&] {
    std::vector<Piece> pieces;
    for (const EncodedPart& part : weight.parts) {
      pieces.push_back({.item_bytes = size_of(part.dtype), .bytes = std::ssize(part.bytes)});
    }
    ShardWriter& shard = shard_for(pieces);
    for (const EncodedPart& part : weight.parts) {
      claim(prefix + part.name);
      shard.add(prefix + part.name, {.dtype = std::string(safetensors_name(part.dtype)),
                                     .shape = {part.count()},
                                     .bytes = part.bytes});
    }
    shard.add_metadata(weight_name, to_json({.format = weight.format,
                                             .version = weight.version,
                                             .dtype = weight.dtype,
                                             .rows = weight.rows,
                                             .columns = weight.columns,
                                             .nonzeros = weight.nonzeros}));
  });
}

void ModelWriter::write_file(const std::string& name, std::span<const std::byte> bytes) {
  writing([&] {
    OutputFile file(directory_.partial_path() / name);
    file.write(bytes, 0);
    file.close();
  });
  files_[name] = {.bytes = std::ssize(bytes), .crc32c = checksum_text(crc32c(bytes))};
  has_config_ = has_config_ || name == kConfig;
}

void ModelWriter::copy_file(const InputFile& from) {
  const std::string name = from.path().filename().string();
  require_file_name(name);
  const MappedFile file(from);
  std::vector<std::byte> bytes(file.bytes().size());
  file.read(file.bytes(), bytes.data());
  write_file(name, bytes);
}

void ModelWriter::write_text(const std::string& name, std::string_view text) {
  require_file_name(name);
  write_file(name, std::as_bytes(std::span(text)));
}

void ModelWriter::write_index() {
  JsonWriter json(/*indent=*/2);
  json.object();
  json.key("metadata").object().member("total_size", finished_bytes_).end();
  json.key("weight_map").object();
  for (const auto& [name, shard] : shard_of_) {
    json.member(name, final_name(shard, shards_));
  }
  json.end().end();
  const std::string text = std::move(json).text() + "\n";
  write_file("model.safetensors.index.json", std::as_bytes(std::span(text)));
}

// All other files are complete.
void ModelWriter::write_manifest() {
  ModelManifest manifest{.id = {}, .files = files_};
  for (int64_t number = 1; number <= shards_; ++number) {
    const ShardWriter::Finished& shard = finished_shards_[static_cast<size_t>(number - 1)];
    manifest.files[final_name(number, shards_)] = {.bytes = shard.bytes, .crc32c = shard.checksum};
  }
  manifest.id = conversion_id(manifest.files);
  for (int64_t number = 1; number <= shards_; ++number) {
    writing([&] {
      overwrite(directory_.partial_path() / final_name(number, shards_),
                std::as_bytes(std::span(manifest.id)),
                finished_shards_[static_cast<size_t>(number - 1)].id_offset);
    });
  }
  const std::string text = to_json(manifest);
  write_file(std::string(kManifestName), std::as_bytes(std::span(text)));
}

void ModelWriter::finish(const std::function<void(const fs::path& complete)>& check) {
  require(has_config_, "{}: the model has no {}", directory_.path().string(), kConfig);
  require(shard_.has_value(), "{}: the model has no tensors", directory_.path().string());
  writing([&] { finish_shard(); });
  for (int64_t number = 1; number <= shards_; ++number) {
    std::error_code error;
    const fs::path name = directory_.partial_path() / final_name(number, shards_);
    fs::rename(shard_path(number), name, error);
    require(!error, "cannot make {}: {}", name.string(), error.message());
  }
  if (shards_ > 1) {
    write_index();
  }
  write_manifest();
  if (check) {
    check(directory_.partial_path());
  }
  directory_.publish();
}

}  // namespace sparsellm
