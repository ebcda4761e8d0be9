#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "tests/testing/temp_dir.h"

namespace sparsellm::testing {

// A copy in `folder` of a model whose weights are f16 in one file, with the elements of a tensor
// from `first` on replaced by these bits.
std::filesystem::path changed_model(const TempDir& folder, const std::filesystem::path& source,
                                    std::string_view tensor, int64_t first,
                                    std::span<const uint16_t> bits);

// A copy in `folder` of a model with one file of weights, with f16 [rows, columns] tensors of these
// names beside them.
std::filesystem::path model_with_tensors(const TempDir& folder, const std::filesystem::path& source,
                                         std::span<const std::string> names, int64_t rows,
                                         int64_t columns);

}  // namespace sparsellm::testing
