#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "kernels/base/lost_pages.h"
#include "kernels/base/open_directory.h"

namespace sparsellm {

// A whole file mapped read-only; the mapping lives as long as the object and stays at its address
// when the object is moved.
class MappedFile {
 public:
  // Throws Error naming the path and the reason (missing, a folder, no permission).
  explicit MappedFile(const InputFile& file);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, static_cast<size_t>(size_)}; }
  int64_t size() const { return size_; }

  // Copies a part of bytes() to other memory without a detour through the mapping, so that no page
  // of it is touched. Throws Error naming the path, also if the file has become shorter.
  void read(std::span<const std::byte> part, std::byte* to) const;

  // Throws Error naming the path if a page of bytes() could not be read (survive_lost_pages()). To
  // be called before what was computed from bytes() is used.
  void require_intact() const;

 private:
  std::filesystem::path path_;
  std::shared_ptr<const FileDescriptor> file_;
  const std::byte* data_ = nullptr;
  int64_t size_ = 0;
  PageGuard guard_;
};

// Whether `bytes` are some of `all`, not whether they are equal to some.
bool is_inside(std::span<const std::byte> bytes, std::span<const std::byte> all);

// Brings the pages of a part of a mapped file into the process's memory in one call instead of one
// page fault after the other.
void populate_pages(std::span<const std::byte> bytes);

// Takes the whole pages inside a part of a mapped file out of the process's memory; they are read
// again if they are needed again.
void release_pages(std::span<const std::byte> bytes);

// The contents of a small text file; refuses one larger than `max_bytes`.
std::string read_text_file(const InputFile& file, int64_t max_bytes);

}  // namespace sparsellm
