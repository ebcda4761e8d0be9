#pragma once

#include <filesystem>
#include <string_view>

#include "kernels/base/file_descriptor.h"

namespace sparsellm {

// A new file that is written beside `target`, and takes its place in one step (readers see the old
// or the new one) or disappears with this object. Several threads and processes may replace one
// file at a time: the last one's stays. Errors name the target and the reason.
class FileReplacement {
 public:
  explicit FileReplacement(std::filesystem::path target);  // throws Error
  ~FileReplacement();
  FileReplacement(const FileReplacement&) = delete;
  FileReplacement& operator=(const FileReplacement&) = delete;

  void write(std::string_view bytes);  // throws Error
  // Waits until the disk has it: without, a crash of the machine can leave the file under its new
  // name, but empty. Throws Error.
  void sync();
  void commit();  // throws Error; the last call

 private:
  void check(bool good) const;

  std::filesystem::path target_;
  std::filesystem::path path_;
  FileDescriptor file_;
  bool committed_ = false;
};

}  // namespace sparsellm
