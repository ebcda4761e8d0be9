#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace sparsellm {

// What is to happen to an older file of the same name.
enum class Existing : uint8_t { keep, replace };

// A file of lines that appears only when it is complete: until then the lines are in
// <path>.partial beside it, which survives a crash with whole lines and perhaps a part of one at
// its end. Whoever holds one keeps other processes out.
class PartialFile {
 public:
  // Opens the partial file, or makes one. Throws Error naming the file and the reason: another
  // process holds it, it cannot be written, or `path` is something else than a file. A symbolic
  // link at `path` is followed: the file that it points to is the one that is replaced in the end.
  explicit PartialFile(const std::filesystem::path& path);
  ~PartialFile();  // removes a partial file that is empty and was not there before
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const std::filesystem::path& partial_path() const { return partial_path_; }
  int64_t size() const { return size_; }  // bytes of the partial file

  // Drops what is after the first `size` bytes.
  void truncate(int64_t size);
  // Adds a line. After an Error (disk full) the file is as it was before.
  void append(std::string_view line);
  // Makes the lines durable.
  void sync();
  // Makes the lines durable and gives the file its name, with the mode of an older one that it
  // replaces. Throws Error, and leaves everything as it is, if the partial file was removed or
  // replaced, if another program has cut it off or added to it, or if there is a file to keep.
  void publish(Existing existing);

 private:
  void open_locked();
  void close();
  void write_all(std::string_view bytes);

  std::filesystem::path path_;
  std::filesystem::path partial_path_;
  int file_ = -1;
  int64_t size_ = 0;
  bool created_ = false;  // the partial file was not there before
  bool published_ = false;
};

}  // namespace sparsellm
