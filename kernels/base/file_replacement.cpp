#include "kernels/base/file_replacement.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "kernels/base/error.h"

namespace sparsellm {

FileReplacement::FileReplacement(std::filesystem::path target) : target_(std::move(target)) {
  constexpr int kMaxAttempts = 100;  // names that others, or crashed ones, may hold
  for (int attempt = 0; attempt < kMaxAttempts && file_.get() < 0; ++attempt) {
    path_ = target_;
    path_ += fmt::format(".{}-{}.partial", ::getpid(), attempt);
    file_ = FileDescriptor(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (file_.get() < 0 && errno != EEXIST) {
      break;
    }
  }
  check(file_.get() >= 0);
}

FileReplacement::~FileReplacement() {
  if (!committed_) {
    ::unlink(path_.c_str());
  }
}

void FileReplacement::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) {
      continue;
    }
    check(written > 0);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

void FileReplacement::sync() { check(::fsync(file_.get()) == 0); }

void FileReplacement::commit() {
  check(::rename(path_.c_str(), target_.c_str()) == 0);
  committed_ = true;
}

void FileReplacement::check(bool good) const {
  require(good, "cannot write {}: {}", target_.native(), std::strerror(errno));
}

}  // namespace sparsellm
