#pragma once

#include <unistd.h>

#include <utility>

namespace sparsellm {

// An open file or directory; closed with this object. -1: none.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    FileDescriptor closed(std::exchange(fd_, std::exchange(other.fd_, -1)));
    return *this;
  }

  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace sparsellm
