#include "tools/run/partial_file.h"

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

// False, with errno, if it fails.
bool rename_file(const fs::path& from, const fs::path& to, Existing existing) {
  if (existing == Existing::keep) {
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) {
      return true;
    }
    if (errno != EINVAL && errno != ENOSYS) {
      return false;
    }
    // The file system, or the kernel, cannot do it in one step.
    struct stat info {};
    if (::lstat(to.c_str(), &info) == 0) {
      errno = EEXIST;
      return false;
    }
  }
  return std::rename(from.c_str(), to.c_str()) == 0;
}

// The name of a file is durable when its folder is.
void sync_folder(const fs::path& folder) {
  const int file = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  require(file >= 0, "cannot open {}: {}", folder.native(), std::strerror(errno));
  const int result = ::fsync(file);
  const int error = errno;
  ::close(file);
  // EINVAL: the file system has no such thing.
  require(result == 0 || error == EINVAL, "cannot write {}: {}", folder.native(),
          std::strerror(error));
}

}  // namespace

PartialFile::PartialFile(const fs::path& path) : path_(resolve(path)), partial_path_(path_) {
  partial_path_ += ".partial";
  try {
    open_locked();
  } catch (...) {
    close();
    throw;
  }
}

void PartialFile::open_locked() {
  do {
    if (file_ >= 0) {
      ::close(file_);
    }
    // O_NONBLOCK: not to wait at a named pipe.
    constexpr int kFlags = O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    file_ = ::open(partial_path_.c_str(), kFlags | O_CREAT | O_EXCL, 0666);
    created_ = file_ >= 0;
    if (!created_ && errno == EEXIST) {
      file_ = ::open(partial_path_.c_str(), kFlags);
      if (file_ < 0 && errno == ENOENT) {
        continue;  // removed in between
      }
      require(file_ >= 0 || errno != ELOOP, "cannot write {}: a symbolic link",
              partial_path_.native());
    }
    require(file_ >= 0, "cannot write {}: {}", partial_path_.native(), std::strerror(errno));
    struct stat info {};
    require(::fstat(file_, &info) == 0 && S_ISREG(info.st_mode),
            "cannot write {}: not a regular file", partial_path_.native());
    if (::flock(file_, LOCK_EX | LOCK_NB) != 0) {
      created_ = created_ && errno != EWOULDBLOCK;  // else it is that process's by now
      require(errno != EWOULDBLOCK, "another process is writing {}", partial_path_.native());
      fail("cannot lock {}: {}", partial_path_.native(), std::strerror(errno));
    }
    // Another process may have published or removed it just before it gave up the lock.
  } while (!is_same_file(file_, partial_path_));
  struct stat info {};
  const bool known = ::fstat(file_, &info) == 0;  // before strerror is evaluated
  require(known, "cannot read {}: {}", partial_path_.native(), std::strerror(errno));
  size_ = info.st_size;
}

PartialFile::~PartialFile() { close(); }

void PartialFile::close() {
  if (created_ && !published_ && size_ == 0 && is_same_file(file_, partial_path_)) {
    ::unlink(partial_path_.c_str());
  }
  if (file_ >= 0) {
    ::close(file_);
  }
}

void PartialFile::truncate(int64_t size) {
  const bool done = ::ftruncate(file_, size) == 0;  // before strerror is evaluated
  require(done, "cannot write {}: {}", partial_path_.native(), std::strerror(errno));
  size_ = size;
}

void PartialFile::write_all(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) {
      continue;
    }
    require(count >= 0, "cannot write {}: {}", partial_path_.native(), std::strerror(errno));
    bytes.remove_prefix(static_cast<size_t>(count));
  }
}

void PartialFile::append(std::string_view line) {
  try {
    write_all(line);
    write_all("\n");
  } catch (...) {
    // If this fails too, the part of a line at the end is found when the file is read again.
    [[maybe_unused]] const int ignored = ::ftruncate(file_, size_);
    throw;
  }
  size_ += std::ssize(line) + 1;
}

void PartialFile::sync() {
  const bool done = ::fsync(file_) == 0;  // before strerror is evaluated
  require(done, "cannot write {}: {}", partial_path_.native(), std::strerror(errno));
}

void PartialFile::publish(Existing existing) {
  sync();
  const std::string failure =
      fmt::format("cannot rename {} to {}", partial_path_.string(), path_.string());
  struct stat info {};
  // Each result is kept in a variable: strerror must not be evaluated before the call.
  bool done = ::lstat(partial_path_.c_str(), &info) == 0;
  require(done, "{}: {}", failure, std::strerror(errno));
  require(is_same_file(file_, partial_path_), "{}: another file has taken its place", failure);
  done = ::fstat(file_, &info) == 0;
  require(done, "{}: {}", failure, std::strerror(errno));
  require(info.st_size == size_,
          "{}: it has {} bytes, but {} were written; another program has changed it", failure,
          info.st_size, size_);
  if (existing == Existing::replace && ::stat(path_.c_str(), &info) == 0) {
    done = ::fchmod(file_, info.st_mode & 0777) == 0;
    require(done, "cannot set the mode of {}: {}", partial_path_.string(), std::strerror(errno));
  }
  done = rename_file(partial_path_, path_, existing);
  require(done, "{}: {}", failure, std::strerror(errno));
  published_ = true;
  sync_folder(path_.has_parent_path() ? path_.parent_path() : fs::path("."));
}

}  // namespace sparsellm
