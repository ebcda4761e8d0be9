#include "tests/fuzz/check_undamaged.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>

#include "kernels/base/mapped_file.h"
#include "models/storage/model_manifest.h"
#include "models/storage/model_metadata.h"
#include "tests/fuzz/expect.h"
#include "tests/fuzz/model_files.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm::fuzz {
namespace {

const std::string* header_checksum_of(const SafetensorsFile& file) {
  const auto found = file.metadata().find(std::string(kHeaderChecksumKey));
  return found == file.metadata().end() ? nullptr : &found->second;
}

// The files of model_bases() with checksums, by that of the header.
std::map<std::string, SafetensorsFile> known_files() {
  const testing::TempDir folder;
  std::map<std::string, SafetensorsFile> files;
  for (const ModelFiles& base : model_bases()) {
    for (const auto& [name, bytes] : base) {
      if (name.ends_with(".safetensors")) {
        SafetensorsFile file(folder.write(name, bytes));
        if (const std::string* const checksum = header_checksum_of(file)) {
          files.emplace(*checksum, std::move(file));
        }
        std::filesystem::remove(folder.path() / name);  // which stays mapped
      }
    }
  }
  return files;
}

bool same(const StoredTensor& a, const StoredTensor& b) {
  return a.dtype == b.dtype && a.shape == b.shape &&
         std::equal(a.bytes.begin(), a.bytes.end(), b.bytes.begin(), b.bytes.end());
}

}  // namespace

void check_undamaged(const Checkpoint& checkpoint, Padding padding) {
  static const std::map<std::string, SafetensorsFile> known = known_files();
  for (const SafetensorsFile& file : checkpoint.files()) {
    const std::string* const checksum = header_checksum_of(file);
    const auto found = checksum != nullptr ? known.find(*checksum) : known.end();
    if (found == known.end()) {
      continue;
    }
    const auto& tensors = found->second.tensors();
    expect(file.tensors().size() == tensors.size(), "as many tensors as the checksum is of");
    for (const auto& [name, tensor] : file.tensors()) {
      const bool counts = padding == Padding::compared || !name.starts_with(kPaddingPrefix);
      const auto original = tensors.find(name);
      expect(original != tensors.end() && (!counts || same(tensor, original->second)),
             "the tensors that the checksum is of");
    }
  }
}

void check_manifest(const std::filesystem::path& directory) {
  constexpr int64_t kMaxBytes = 1 << 24;
  const std::string manifest = read_text_file(directory / kManifestName, kMaxBytes);
  for (const ModelFiles& base : model_bases()) {
    const auto found = base.find(kManifestName);
    if (found != base.end() && found->second == manifest) {
      for (const auto& [name, bytes] : base) {
        // Of these check_undamaged() says more: texts of a header may differ that mean the same.
        expect(
            name.ends_with(".safetensors") || read_text_file(directory / name, kMaxBytes) == bytes,
            "the files that the manifest is of");
      }
      return;
    }
  }
}

}  // namespace sparsellm::fuzz
