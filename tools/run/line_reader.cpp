#include "tools/run/line_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include "kernels/base/crc32c.h"
#include "kernels/base/error.h"

namespace sparsellm {
namespace {

constexpr size_t kBlockBytes = 1 << 18;

// Without O_NONBLOCK the opening of a named pipe waits for another program to write.
int open_regular(const std::filesystem::path& path, struct stat& info) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  require(file >= 0, "cannot open {}: {}", path.string(), std::strerror(errno));
  if (::fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(file);
    fail("cannot read {}: not a regular file", path.string());
  }
  return file;
}

}  // namespace

LineReader::LineReader(const std::filesystem::path& path, int64_t max_bytes)
    : path_(path),
      max_bytes_(static_cast<size_t>(max_bytes)),
      file_(open_regular(path, opened_)),
      block_(kBlockBytes) {}

LineReader::~LineReader() { ::close(file_); }

bool LineReader::fill() {
  ssize_t count = 0;
  do {
    count = ::read(file_, block_.data(), block_.size());
  } while (count < 0 && errno == EINTR);
  require(count >= 0, "cannot read {}: {}", path_.string(), std::strerror(errno));
  begin_ = 0;
  end_ = static_cast<size_t>(count);
  return count > 0;
}

bool LineReader::next(Line& line) {
  text_.clear();
  line = {.number = number_ + 1, .text = {}, .too_long = false, .has_end = false, .last = '\0'};
  const int64_t start = offset_;
  while (!line.has_end && (begin_ < end_ || fill())) {
    const char* const data = block_.data() + begin_;
    const void* const newline = std::memchr(data, '\n', end_ - begin_);
    line.has_end = newline != nullptr;
    const size_t length = line.has_end
                              ? static_cast<size_t>(static_cast<const char*>(newline) - data)
                              : end_ - begin_;
    const size_t room = max_bytes_ - text_.size();
    line.too_long = line.too_long || length > room;
    text_.append(data, std::min(length, room));
    line.last = length > 0 ? data[length - 1] : line.last;
    const size_t taken = length + (line.has_end ? 1 : 0);
    checksum_ = crc32c(std::as_bytes(std::span(data, taken)), checksum_);
    begin_ += taken;
    offset_ += static_cast<int64_t>(taken);
  }
  if (offset_ == start) {
    return false;
  }
  ++number_;
  if (!line.too_long && text_.ends_with('\r')) {
    text_.pop_back();
  }
  line.text = text_;
  return true;
}

void LineReader::rewind() {
  const bool done = ::lseek(file_, 0, SEEK_SET) == 0;  // before strerror is evaluated
  require(done, "cannot read {}: {}", path_.string(), std::strerror(errno));
  begin_ = end_ = 0;
  number_ = offset_ = 0;
  checksum_ = 0;
}

bool LineReader::is_file(const std::filesystem::path& path) const {
  struct stat named {};
  return ::stat(path.c_str(), &named) == 0 && named.st_dev == opened_.st_dev &&
         named.st_ino == opened_.st_ino;
}

bool LineReader::has_changed() const {
  struct stat now {};
  return ::fstat(file_, &now) != 0 || now.st_size != opened_.st_size ||
         now.st_mtim.tv_sec != opened_.st_mtim.tv_sec ||
         now.st_mtim.tv_nsec != opened_.st_mtim.tv_nsec;
}

}  // namespace sparsellm
