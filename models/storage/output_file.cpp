#include "models/storage/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/base/error.h"

namespace sparsellm {

OutputFile::OutputFile(const std::filesystem::path& path, Kind kind)
    : path_(path),
      file_(::open(path.c_str(),
                   O_RDWR | O_CLOEXEC | (kind == Kind::created ? O_CREAT | O_EXCL : 0), 0666)) {
  require(file_ >= 0, "cannot write {}: {}", path.native(), std::strerror(errno));
}

OutputFile::~OutputFile() {
  if (file_ >= 0) {
    ::close(file_);
  }
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)), file_(std::exchange(other.file_, -1)) {}

void OutputFile::write(std::span<const std::byte> bytes, int64_t offset) {
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(file_, bytes.data(), bytes.size(), offset);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    const char* const reason = count < 0 ? std::strerror(errno) : "nothing was written";
    require(count > 0, "cannot write {}: {}", path_.native(), reason);
    bytes = bytes.subspan(static_cast<size_t>(count));
    offset += count;
  }
}

void OutputFile::read(std::span<std::byte> bytes, int64_t offset) const {
  while (!bytes.empty()) {
    const ssize_t count = ::pread(file_, bytes.data(), bytes.size(), offset);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    const char* const reason = count < 0 ? std::strerror(errno) : "it has become shorter";
    require(count > 0, "cannot read {}: {}", path_.native(), reason);
    bytes = bytes.subspan(static_cast<size_t>(count));
    offset += count;
  }
}

void OutputFile::move_up(int64_t from, int64_t to, int64_t bytes) {
  constexpr int64_t kChunkBytes = 1 << 20;
  std::vector<std::byte> chunk(static_cast<size_t>(std::min(bytes, kChunkBytes)));
  // From the end, so that nothing is overwritten that has not been read.
  for (int64_t left = bytes; left > 0;) {
    const int64_t count = std::min(left, kChunkBytes);
    left -= count;
    const auto part = std::span(chunk).first(static_cast<size_t>(count));
    read(part, from + left);
    write(part, to + left);
  }
}

void OutputFile::close() {
  bool done = ::fsync(file_) == 0;  // before strerror is evaluated
  require(done, "cannot write {}: {}", path_.native(), std::strerror(errno));
  // Some network file systems report a full disk only here.
  done = ::close(std::exchange(file_, -1)) == 0;
  require(done, "cannot write {}: {}", path_.native(), std::strerror(errno));
}

void overwrite(const std::filesystem::path& path, std::span<const std::byte> bytes,
               int64_t offset) {
  OutputFile file(path, OutputFile::Kind::existing);
  file.write(bytes, offset);
  file.close();
}

void sync_directory(const std::filesystem::path& directory) {
  const int file = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  require(file >= 0, "cannot open {}: {}", directory.native(), std::strerror(errno));
  const int result = ::fsync(file);
  const int error = errno;
  ::close(file);
  // EINVAL: the file system has no such thing.
  require(result == 0 || error == EINVAL, "cannot write {}: {}", directory.native(),
          std::strerror(error));
}

}  // namespace sparsellm
