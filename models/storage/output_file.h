#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace sparsellm {

// A new file that is written at any offsets. Every method throws Error that names the file and the
// reason.
class OutputFile {
 public:
  // Refuses a name that is there already.
  explicit OutputFile(const std::filesystem::path& path) : OutputFile(path, Kind::created) {}
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;

  const std::filesystem::path& path() const { return path_; }

  void write(std::span<const std::byte> bytes, int64_t offset);
  // Moves the `bytes` bytes from `from` to the larger offset `to`.
  void move_up(int64_t from, int64_t to, int64_t bytes);
  // Makes the contents durable and gives the file back.
  void close();

 private:
  friend void overwrite(const std::filesystem::path& path, std::span<const std::byte> bytes,
                        int64_t offset);
  enum class Kind : uint8_t { created, existing };
  OutputFile(const std::filesystem::path& path, Kind kind);

  void read(std::span<std::byte> bytes, int64_t offset) const;

  std::filesystem::path path_;
  int file_ = -1;
};

// Replaces bytes of a file that is there, and makes them durable. Throws Error.
void overwrite(const std::filesystem::path& path, std::span<const std::byte> bytes, int64_t offset);

// Makes the names in a directory durable. Throws Error.
void sync_directory(const std::filesystem::path& directory);

}  // namespace sparsellm
