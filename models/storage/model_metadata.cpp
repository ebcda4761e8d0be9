#include "models/storage/model_metadata.h"

#include <spdlog/fmt/ranges.h>

#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/crc32c.h"
#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "kernels/base/json_writer.h"
#include "sparse/encoded_weight.h"

namespace sparsellm {
namespace {

DType parse_dtype(const JsonValue& value) {
  const std::optional<DType> dtype = dtype_of_safetensors(value.string());
  if (!dtype || !is_floating(*dtype)) {
    value.refuse("expected F16, BF16 or F32");
  }
  return *dtype;
}

}  // namespace

std::string to_json(const EncodedHeader& header) {
  JsonWriter json;
  json.object()
      .member("format", header.format)
      .member("version", header.version)
      .member("dtype", safetensors_name(header.dtype));
  json.key("shape").array().value(header.rows).value(header.columns).end();
  json.member("nnz", header.nonzeros).end();
  return std::move(json).text();
}

EncodedHeader parse_encoded_header(std::string_view text, const std::string& source) {
  constexpr int kMaxDepth = 2;  // the object, the shape
  const JsonDocument document = parse_json(text, source, kMaxDepth);
  const JsonValue json(document, source);
  json.allow_only({"format", "version", "dtype", "shape", "nnz"});
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  const std::vector<int64_t> shape = json["shape"].integers(1, kMax);
  require(shape.size() == 2, "{} holds {} numbers; expected 2", json["shape"].name(), shape.size());
  return {.format = json["format"].string(),
          .version =
              static_cast<int32_t>(json["version"].integer(0, std::numeric_limits<int32_t>::max())),
          .dtype = parse_dtype(json["dtype"]),
          .rows = shape[0],
          .columns = shape[1],
          .nonzeros = json["nnz"].integer(0, kMax)};
}

bool is_weight_key(std::string_view key) {
  return key != "format" && !key.starts_with("sparsellm.") && !key.starts_with(kChecksumPrefix);
}

std::string checksum_key(std::string_view tensor) {
  return std::string(kChecksumPrefix).append(tensor);
}

std::string part_prefix(std::string_view weight, std::string_view format) {
  return fmt::format("{}.{}.", weight, format);
}

std::string checksum_text(uint32_t checksum) { return fmt::format("{:08x}", checksum); }

uint32_t header_checksum(const std::map<std::string, StoredTensor, std::less<>>& tensors,
                         const std::map<std::string, std::string>& metadata) {
  uint32_t checksum = 0;
  const auto add = [&](const std::string& line) {
    checksum = crc32c(std::as_bytes(std::span(line)), checksum);
  };
  for (const auto& [name, tensor] : tensors) {
    add(fmt::format("{} {} [{}]\n", name, tensor.dtype, fmt::join(tensor.shape, ", ")));
  }
  for (const auto& [key, value] : metadata) {
    if (key != kHeaderChecksumKey && key != kConversionKey) {
      add(fmt::format("{} {}\n", key, value));
    }
  }
  return checksum;
}

}  // namespace sparsellm
