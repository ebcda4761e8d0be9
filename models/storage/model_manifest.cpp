#include "models/storage/model_manifest.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "kernels/base/json_writer.h"

namespace sparsellm {
namespace {

constexpr int64_t kVersion = 1;

bool is_hexadecimal(std::string_view text, int64_t digits) {
  return std::ssize(text) == digits && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

std::string read_hexadecimal(const JsonValue& value, int64_t digits) {
  const std::string& text = value.string();
  if (!is_hexadecimal(text, digits)) {
    value.refuse(fmt::format("expected {} hexadecimal digits", digits));
  }
  return text;
}

}  // namespace

std::string conversion_id(const std::map<std::string, ModelManifest::File, std::less<>>& files) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a of 64 bits: it tells accidents, not attacks
  for (const auto& [name, file] : files) {
    if (name == kModelCardName) {
      continue;
    }
    // No name has a NUL.
    for (char c : fmt::format("{}{}{} {}\n", name, '\0', file.bytes, file.crc32c)) {
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    }
  }
  return fmt::format("{:016x}", hash);
}

std::string to_json(const ModelManifest& manifest) try {
  JsonWriter json(/*indent=*/2, InvalidUtf8::refused);
  json.object().member("version", kVersion).member("id", manifest.id).key("files").object();
  for (const auto& [name, file] : manifest.files) {
    json.key(name).object().member("bytes", file.bytes).member("crc32c", file.crc32c).end();
  }
  json.end().end();
  return std::move(json).text() + "\n";
} catch (const Error& error) {
  fail("cannot write {}: the name of a file: {}", kManifestName, error.what());
}

std::optional<ModelManifest> read_manifest(const OpenDirectory& directory) {
  const InputFile file = directory / kManifestName;
  if (!is_there(file)) {
    return std::nullopt;
  }
  constexpr int64_t kMaxBytes = 16 << 20;
  constexpr int kMaxDepth = 3;
  const JsonDocument document = read_json_file(file, kMaxBytes, kMaxDepth);
  const JsonValue root(document, file.string());
  const int64_t version = root["version"].integer(1, std::numeric_limits<int64_t>::max());
  require(version == kVersion, "{} has version {}; supported is {}", file.string(), version,
          kVersion);
  root.allow_only({"version", "id", "files"});
  ModelManifest manifest{.id = read_hexadecimal(root["id"], kConversionIdDigits), .files = {}};
  const JsonValue files = root["files"];
  for (const std::string& name : files.keys()) {
    const JsonValue entry = files[name];
    entry.allow_only({"bytes", "crc32c"});
    constexpr int64_t kChecksumDigits = 8;
    manifest.files[name] = {.bytes = entry["bytes"].integer(0, std::numeric_limits<int64_t>::max()),
                            .crc32c = read_hexadecimal(entry["crc32c"], kChecksumDigits)};
  }
  require(manifest.id == conversion_id(manifest.files),
          "{} is damaged: its id is not that of its files", file.string());
  return manifest;
}

}  // namespace sparsellm
