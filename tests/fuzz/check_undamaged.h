#pragma once

#include <cstdint>
#include <filesystem>

#include "models/storage/safetensors.h"

namespace sparsellm::fuzz {

enum class Padding : uint8_t { compared, ignored };

// A file whose header has the checksum of one of model_bases() holds the same tensors: what an
// accepted model has to come to when its checksums were compared.
void check_undamaged(const Checkpoint& checkpoint, Padding padding);

// The same for a directory whose manifest is one of theirs, and its other files.
void check_manifest(const std::filesystem::path& directory);

}  // namespace sparsellm::fuzz
