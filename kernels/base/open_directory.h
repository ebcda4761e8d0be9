#pragma once

#include <concepts>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/base/file_descriptor.h"

namespace sparsellm {

struct DirectoryEntries;

// A file to be read: by its path, or as an OpenDirectory has it.
class InputFile {
 public:
  template <class Path>
  requires(std::convertible_to<Path, std::filesystem::path> &&
           !std::same_as<std::remove_cvref_t<Path>, InputFile>)
      // NOLINTNEXTLINE(bugprone-forwarding-reference-overload): not for another InputFile
      InputFile(Path&& path)
      : path_(std::forward<Path>(path)) {}

  const std::filesystem::path& path() const { return path_; }
  std::string string() const { return path_.string(); }

  // Throws Error naming the path and the reason.
  std::shared_ptr<const FileDescriptor> open() const;

 private:
  friend class OpenDirectory;
  friend bool is_there(const InputFile& file);

  std::filesystem::path path_;
  std::shared_ptr<const DirectoryEntries> directory_;  // nullptr: of none
};

// Whether something has this name, a link that leads nowhere too. What cannot be looked at (no
// permission, a disk that fails) counts as there: opening it tells what is wrong.
bool is_there(const InputFile& file);

// The files of a model directory as they all were at one moment: sparsellm-convert --force replaces
// a directory as a whole, and a program that opened one file after the other by their paths could
// get some of the older model and some of the newer one. The files that a model is loaded from are
// opened at once; if the path then means another directory, it begins again. Copies share the open
// files.
class OpenDirectory {
 public:
  // Throws Error naming the path and the reason.
  template <class Path>
  requires(std::convertible_to<Path, std::filesystem::path> &&
           !std::same_as<std::remove_cvref_t<Path>, OpenDirectory>) OpenDirectory(const Path& path)
      : OpenDirectory(std::filesystem::path(path), 0) {}

  const std::filesystem::path& path() const;
  std::string string() const { return path().string(); }
  std::vector<std::string> names() const;  // of all that is in it; sorted
  // A file that need not be there. `name` has no slash.
  InputFile operator/(std::string_view name) const;

 private:
  OpenDirectory(const std::filesystem::path& path, int);

  std::shared_ptr<const DirectoryEntries> entries_;
};

}  // namespace sparsellm
