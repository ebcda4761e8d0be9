#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/open_directory.h"

namespace sparsellm {

// What sparsellm-convert wrote into a directory, in a file of its own, "sparsellm_manifest.json":
//   {"version": 1, "id": "0f1e2d3c4b5a6978",
//    "files": {"config.json": {"bytes": 512, "crc32c": "89abcdef"}, ...}}
// "files" has all other files of the directory. The checksum of a safetensors file is its
// "sparsellm.header_crc32c", which covers those of its tensors. The id is made of the names, sizes
// and checksums of all files but the model card, which has the name of the directory: the same
// command gives the same id, and files of two conversions that differ do not have the same.
struct ModelManifest {
  struct File {
    int64_t bytes = 0;
    std::string crc32c;  // 8 hexadecimal digits
  };
  std::string id;  // 16 hexadecimal digits
  std::map<std::string, File, std::less<>> files;
};

inline constexpr std::string_view kManifestName = "sparsellm_manifest.json";
inline constexpr std::string_view kModelCardName = "README.md";
inline constexpr int64_t kConversionIdDigits = 16;

// The id of these files.
std::string conversion_id(const std::map<std::string, ModelManifest::File, std::less<>>& files);

std::string to_json(const ModelManifest& manifest);
// Nothing if the directory has none. Throws Error for one that is damaged, or of a newer version.
std::optional<ModelManifest> read_manifest(const OpenDirectory& directory);

}  // namespace sparsellm
