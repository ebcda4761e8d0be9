#include "kernels/base/lfs_pointer.h"

#include "kernels/base/error.h"

namespace sparsellm {

void require_no_lfs_pointer(const std::filesystem::path& path, std::string_view bytes) {
  // The first line of each (git-lfs, docs/spec.md).
  require(!bytes.starts_with("version https://git-lfs.github.com/spec/"),
          "{} is only a pointer to the file, which git-lfs has not fetched; run 'git lfs pull' in "
          "its directory",
          path.string());
}

}  // namespace sparsellm
