#pragma once

#include <sys/mount.h>

#include <filesystem>
#include <string>

#include "tests/testing/temp_dir.h"

namespace sparsellm::testing {

// A file system that is soon full, where the process may mount one.
class SmallDisk {
 public:
  explicit SmallDisk(const std::string& size)  // as mount has it: "256k"
      : mounted_(::mount("tmpfs", directory_.path().c_str(), "tmpfs", 0,
                         ("size=" + size).c_str()) == 0) {}
  ~SmallDisk() {
    if (mounted_) {
      ::umount2(directory_.path().c_str(), MNT_DETACH);
    }
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  bool mounted() const { return mounted_; }
  const std::filesystem::path& path() const { return directory_.path(); }

 private:
  TempDir directory_;
  bool mounted_;
};

}  // namespace sparsellm::testing
