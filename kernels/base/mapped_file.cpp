#include "kernels/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

// Closes on every way out of MappedFile's constructor.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  // Without O_NONBLOCK the opening of a named pipe waits for somebody to write.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  require(file.get() >= 0, "cannot open {}: {}", path.string(), std::strerror(errno));
  struct stat info {};
  const bool known = ::fstat(file.get(), &info) == 0;  // before strerror is evaluated
  require(known, "cannot read {}: {}", path.string(), std::strerror(errno));
  require(S_ISREG(info.st_mode), "cannot read {}: not a regular file", path.string());
  size_ = info.st_size;
  if (size_ == 0) {
    return;  // mmap refuses a length of 0
  }
  void* data = ::mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_PRIVATE, file.get(), 0);
  require(data != MAP_FAILED, "cannot map {}: {}", path.string(), std::strerror(errno));
  data_ = static_cast<const std::byte*>(data);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), static_cast<size_t>(size_));
  }
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

void release_pages(std::span<const std::byte> bytes) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGE_SIZE));
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
  const uintptr_t first = (begin + page - 1) / page * page;
  const uintptr_t last = (begin + bytes.size()) / page * page;
  if (first < last) {
    // A hint: when it fails, only memory is lost.
    ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
  }
}

std::string read_text_file(const std::filesystem::path& path, int64_t max_bytes) {
  const MappedFile file(path);
  require(file.size() <= max_bytes, "{} has {} bytes; at most {} are read", path.string(),
          file.size(), max_bytes);
  return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
}

}  // namespace sparsellm
