#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace sparsellm {

// A file of lines that appears only when it is complete: until then the lines are in
// <path>.partial beside it, which survives a crash with whole lines and perhaps a part of one at
// its end. Whoever holds one keeps other processes out.
class PartialFile {
 public:
  // Opens the partial file, or makes one. Throws Error naming the file and the reason: another
  // process holds it, it cannot be written, or `path` is something else than a file. A symbolic
  // link is followed: the file that it points to is the one that is replaced in the end.
  explicit PartialFile(const std::filesystem::path& path);
  ~PartialFile();  // removes a partial file that is empty
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const std::filesystem::path& partial_path() const { return partial_path_; }
  int64_t size() const { return size_; }  // bytes of the partial file

  // Drops what is behind the first `size` bytes.
  void truncate(int64_t size);
  // Adds a line. After an Error (disk full) the file is as it was before.
  void append(std::string_view line);
  // Makes the lines durable and gives the file its name, in place of an older one.
  void publish();

 private:
  void open_locked();
  void write_all(std::string_view bytes);

  std::filesystem::path path_;
  std::filesystem::path partial_path_;
  int file_ = -1;
  int64_t size_ = 0;
  bool published_ = false;
};

}  // namespace sparsellm
