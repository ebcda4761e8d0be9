#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace sparsellm {

// A whole file mapped read-only; the mapping lives as long as the object and stays at its address
// when the object is moved.
class MappedFile {
 public:
  // Throws Error naming the path and the reason (missing, a folder, no permission).
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, static_cast<size_t>(size_)}; }
  int64_t size() const { return size_; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

// Takes the whole pages inside a part of a mapped file out of the process's memory; they are read
// again if they are needed again.
void release_pages(std::span<const std::byte> bytes);

// The contents of a small text file; refuses one larger than `max_bytes`.
std::string read_text_file(const std::filesystem::path& path, int64_t max_bytes);

}  // namespace sparsellm
