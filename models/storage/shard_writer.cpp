#include "models/storage/shard_writer.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "kernels/base/crc32c.h"
#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "kernels/base/json_writer.h"
#include "models/storage/model_manifest.h"
#include "models/storage/model_metadata.h"

namespace sparsellm {
namespace {

constexpr int64_t kLengthBytes = 8;  // in front of the header
constexpr int64_t kDataAlignment = 64;

}  // namespace

ShardWriter::ShardWriter(const std::filesystem::path& path, int64_t number, int64_t header_bytes)
    : file_(path),
      number_(number),
      data_begin_(ShardWriter::aligned(kLengthBytes + header_bytes, kDataAlignment)) {
  metadata_["format"] = "pt";  // Hugging Face tools refuse files without it
  metadata_[std::string(kVersionKey)] = kMetadataVersion;
}

void ShardWriter::add_metadata(const std::string& key, const std::string& value) {
  require(metadata_.emplace(key, value).second, "{}: the metadata {} is there already",
          file_.path().string(), quote(key));
}

void ShardWriter::add(const std::string& name, const StoredTensor& tensor) {
  const std::string where = fmt::format("{}: tensor {}", file_.path().string(), quote(name));
  const std::optional<int64_t> bits = stored_item_bits(tensor.dtype);
  require(bits.has_value(), "{} has the unknown dtype {}", where, quote(tensor.dtype));
  int64_t expected = *bits;
  for (int64_t size : tensor.shape) {
    expected = checked_mul(expected, size, where.c_str());
  }
  require(expected / 8 == std::ssize(tensor.bytes) && expected % 8 == 0,
          "{} has {} bytes, but its shape takes {} bits", where, tensor.bytes.size(), expected);
  require(name != "__metadata__" && !name.starts_with(kPaddingPrefix) && !tensors_.contains(name),
          "{}: the name is taken", where);
  pad(std::max<int64_t>(*bits / 8, 1));
  append(name, tensor);
}

void ShardWriter::pad(int64_t alignment) {
  const int64_t gap = aligned(data_bytes_, alignment) - data_bytes_;
  if (gap > 0) {
    const std::vector<std::byte> zeros(static_cast<size_t>(gap));
    append(fmt::format("{}{}.{}", kPaddingPrefix, number_, data_bytes_),
           {.dtype = "U8", .shape = {gap}, .bytes = zeros});
  }
}

void ShardWriter::append(const std::string& name, const StoredTensor& tensor) {
  constexpr size_t kPieceBytes = 1 << 18;  // which is in the cache when the file takes it
  uint32_t checksum = 0;
  int64_t end = data_bytes_;
  for (auto rest = tensor.bytes; !rest.empty();) {
    const auto piece = rest.first(std::min(rest.size(), kPieceBytes));
    checksum = crc32c(piece, checksum);
    file_.write(piece, data_begin_ + end);
    end += std::ssize(piece);
    rest = rest.subspan(piece.size());
  }
  add_metadata(checksum_key(name), checksum_text(checksum));
  tensors_[name] = {.dtype = tensor.dtype, .shape = tensor.shape, .bytes = {}};
  offsets_[name] = {std::exchange(data_bytes_, end), end};
}

std::string ShardWriter::header() const {
  JsonWriter json(/*indent=*/-1, InvalidUtf8::refused);
  json.object().key("__metadata__").object();
  for (const auto& [key, value] : metadata_) {
    json.member(key, value);
  }
  json.end();
  for (const auto& [name, tensor] : tensors_) {
    json.key(name).object().member("dtype", tensor.dtype).key("shape").array();
    for (int64_t size : tensor.shape) {
      json.value(size);
    }
    const auto& [begin, end] = offsets_.at(name);
    json.end().key("data_offsets").array().value(begin).value(end).end().end();
  }
  json.end();
  return std::move(json).text();
}

ShardWriter::Finished ShardWriter::finish() {
  Finished result{.checksum = checksum_text(header_checksum(tensors_, metadata_))};
  metadata_[std::string(kHeaderChecksumKey)] = result.checksum;
  metadata_[std::string(kConversionKey)] = std::string(kConversionIdDigits, '0');
  std::string text;
  try {
    text = header();
  } catch (const Error& error) {
    fail("cannot write {}: the name of a tensor: {}", file_.path().string(), error.what());
  }
  // No string in JSON has a quotation mark without a backslash in front.
  const std::string before_id = fmt::format("\"{}\":\"", kConversionKey);
  result.id_offset = kLengthBytes + static_cast<int64_t>(text.find(before_id) + before_id.size());
  const int64_t begin =
      std::max(data_begin_, ShardWriter::aligned(kLengthBytes + std::ssize(text), kDataAlignment));
  if (begin > data_begin_) {
    file_.move_up(data_begin_, begin, data_bytes_);
    data_begin_ = begin;
  }
  const auto length = static_cast<uint64_t>(data_begin_ - kLengthBytes);
  require(length <= uint64_t{SafetensorsFile::kMaxHeaderBytes},
          "cannot write {}: its header has {} bytes; at most {} are read", file_.path().string(),
          length, SafetensorsFile::kMaxHeaderBytes);
  text.resize(length, ' ');  // as the format allows
  file_.write(std::as_bytes(std::span(text)), kLengthBytes);
  file_.write(std::as_bytes(std::span(&length, 1)), 0);
  file_.close();
  result.bytes = data_begin_ + data_bytes_;
  return result;
}

}  // namespace sparsellm
