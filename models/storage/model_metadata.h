#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "kernels/base/dtype.h"
#include "models/storage/safetensors.h"

namespace sparsellm {

// What the files of a converted model say in their __metadata__, and the names that they give:
//   "sparsellm.version"        kMetadataVersion; files without it are plain checkpoints
//   "sparsellm.header_crc32c"  header_checksum(), which covers the other checksums
//   "sparsellm.conversion"     the id of the conversion (models/storage/model_manifest.h), the same
//   in all
//                              files of a model; older files have none
//   "crc32c:<tensor>"          of the bytes of each tensor of the file; 8 hexadecimal digits
//   "<weight>"                 of each encoded weight, an EncodedHeader in JSON:
//     {"format": "tca_bme", "version": 2, "dtype": "F16", "shape": [out, in], "nnz": n}
// The parts of the weight are 1-dimensional tensors of the same file, "<weight>.<format>.<part>".
inline constexpr std::string_view kMetadataVersion = "1";
inline constexpr std::string_view kVersionKey = "sparsellm.version";
inline constexpr std::string_view kHeaderChecksumKey = "sparsellm.header_crc32c";
inline constexpr std::string_view kConversionKey = "sparsellm.conversion";
inline constexpr std::string_view kChecksumPrefix = "crc32c:";

// Tensors without meaning that make the next one begin at a multiple of its elements' size.
inline constexpr std::string_view kPaddingPrefix = "sparsellm.padding.";

struct EncodedHeader {
  std::string format;
  int32_t version = 0;  // of the format's layout
  DType dtype = DType::f16;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t nonzeros = 0;
};

std::string to_json(const EncodedHeader& header);
// Throws Error that begins with `source`. A format may be one that is not known.
EncodedHeader parse_encoded_header(std::string_view text, const std::string& source);

// Whether a key of the metadata is the name of an encoded weight.
bool is_weight_key(std::string_view key);
std::string checksum_key(std::string_view tensor);
std::string part_prefix(std::string_view weight, std::string_view format);  // ends with a dot

std::string checksum_text(uint32_t checksum);

// CRC-32C of the names, dtypes and shapes of all tensors, and of all metadata but the entries for
// the checksum itself and for the id of the conversion, which is made of the checksums of all
// files.
uint32_t header_checksum(const std::map<std::string, StoredTensor, std::less<>>& tensors,
                         const std::map<std::string, std::string>& metadata);

}  // namespace sparsellm
