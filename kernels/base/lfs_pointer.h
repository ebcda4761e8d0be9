#pragma once

#include <filesystem>
#include <string_view>

namespace sparsellm {

// Throws Error that says what to do if `bytes`, all of a file or its beginning, are a pointer of
// git-lfs: what a clone has in place of a large file until that is fetched.
void require_no_lfs_pointer(const std::filesystem::path& path, std::string_view bytes);

}  // namespace sparsellm
