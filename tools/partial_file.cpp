#include "tools/partial_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <system_error>

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;

// The file that `path` means: a link to a file would else be replaced by the file.
fs::path resolve(const fs::path& path) {
  require(path.has_filename(), "cannot write '{}': not the name of a file", path.string());
  std::error_code error;
  const fs::file_status link = fs::symlink_status(path, error);
  if (link.type() == fs::file_type::not_found) {
    return path;
  }
  const fs::file_status target = fs::status(path, error);
  require(target.type() != fs::file_type::not_found, "cannot write {}: a link to nothing",
          path.string());
  require(target.type() != fs::file_type::none, "cannot write {}: {}", path.string(),
          error.message());
  require(target.type() != fs::file_type::directory, "cannot write {}: a folder", path.string());
  require(target.type() == fs::file_type::regular, "cannot write {}: not a regular file",
          path.string());
  const fs::path real = fs::canonical(path, error);
  require(!error, "cannot write {}: {}", path.string(), error.message());
  return link.type() == fs::file_type::symlink ? real : path;
}

// Whether `path` is still the file that was opened.
bool is_same_file(int file, const fs::path& path) {
  struct stat opened {};
  struct stat named {};
  return ::fstat(file, &opened) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

// The name of a file is durable when its folder is.
void sync_folder(const fs::path& folder) {
  const int file = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  require(file >= 0, "cannot open {}: {}", folder.string(), std::strerror(errno));
  const int result = ::fsync(file);
  const int error = errno;
  ::close(file);
  // EINVAL: the file system has no such thing.
  require(result == 0 || error == EINVAL, "cannot write {}: {}", folder.string(),
          std::strerror(error));
}

}  // namespace

PartialFile::PartialFile(const fs::path& path) : path_(resolve(path)), partial_path_(path_) {
  partial_path_ += ".partial";
  try {
    open_locked();
  } catch (...) {
    if (file_ >= 0) {
      ::close(file_);
    }
    throw;
  }
}

void PartialFile::open_locked() {
  do {
    if (file_ >= 0) {
      ::close(file_);
    }
    // O_NONBLOCK: not to wait at a named pipe.
    file_ = ::open(partial_path_.c_str(),
                   O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    require(file_ >= 0, "cannot write {}: {}", partial_path_.string(), std::strerror(errno));
    struct stat info {};
    require(::fstat(file_, &info) == 0 && S_ISREG(info.st_mode),
            "cannot write {}: not a regular file", partial_path_.string());
    if (::flock(file_, LOCK_EX | LOCK_NB) != 0) {
      require(errno != EWOULDBLOCK, "another process is writing {}", partial_path_.string());
      fail("cannot lock {}: {}", partial_path_.string(), std::strerror(errno));
    }
    // Another process may have published or removed it just before it gave up the lock.
  } while (!is_same_file(file_, partial_path_));
  struct stat info {};
  require(::fstat(file_, &info) == 0, "cannot read {}: {}", partial_path_.string(),
          std::strerror(errno));
  size_ = info.st_size;
}

PartialFile::~PartialFile() {
  if (!published_ && size_ == 0) {
    ::unlink(partial_path_.c_str());
  }
  ::close(file_);
}

void PartialFile::truncate(int64_t size) {
  require(::ftruncate(file_, size) == 0, "cannot write {}: {}", partial_path_.string(),
          std::strerror(errno));
  size_ = size;
}

void PartialFile::write_all(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) {
      continue;
    }
    require(count >= 0, "cannot write {}: {}", partial_path_.string(), std::strerror(errno));
    bytes.remove_prefix(static_cast<size_t>(count));
  }
}

void PartialFile::append(std::string_view line) {
  const std::string bytes = fmt::format("{}\n", line);
  try {
    write_all(bytes);
  } catch (...) {
    // If this fails too, the part of a line at the end is found when the file is read again.
    std::error_code ignored;
    fs::resize_file(partial_path_, static_cast<uintmax_t>(size_), ignored);
    throw;
  }
  size_ += std::ssize(bytes);
}

void PartialFile::publish() {
  require(::fsync(file_) == 0, "cannot write {}: {}", partial_path_.string(), std::strerror(errno));
  require(std::rename(partial_path_.c_str(), path_.c_str()) == 0, "cannot rename {} to {}: {}",
          partial_path_.string(), path_.string(), std::strerror(errno));
  published_ = true;
  sync_folder(path_.has_parent_path() ? path_.parent_path() : fs::path("."));
}

}  // namespace sparsellm
