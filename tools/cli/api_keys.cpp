#include "tools/cli/api_keys.h"

#include <algorithm>
#include <sstream>

#include "kernels/base/error.h"
#include "kernels/base/mapped_file.h"

namespace sparsellm {

std::vector<std::string> read_api_keys(const std::string& path) {
  constexpr int64_t kMaxKeyFile = 1 << 20;
  std::istringstream text(read_text_file(path, kMaxKeyFile));
  std::vector<std::string> keys;
  for (std::string line; std::getline(text, line);) {
    if (line.ends_with('\r')) {
      line.pop_back();
    }
    if (line.empty() || line.starts_with('#')) {
      continue;
    }
    const bool visible =
        std::all_of(line.begin(), line.end(), [](char c) { return c > ' ' && c < 0x7f; });
    require(visible, "{}: key {} has characters other than visible ASCII", path, keys.size() + 1);
    keys.push_back(line);
  }
  require(!keys.empty(), "{} has no key", path);
  return keys;
}

}  // namespace sparsellm
