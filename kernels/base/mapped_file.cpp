#include "kernels/base/mapped_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ of Linux 5.14, which older C libraries lack

}  // namespace

MappedFile::MappedFile(const InputFile& file) : path_(file.path()), file_(file.open()) {
  struct stat info {};
  const bool known = ::fstat(file_->get(), &info) == 0;  // before strerror is evaluated
  require(known, "cannot read {}: {}", path_.string(), std::strerror(errno));
  require(S_ISREG(info.st_mode), "cannot read {}: not a regular file", path_.string());
  size_ = info.st_size;
  if (size_ == 0) {
    return;  // mmap refuses a length of 0
  }
  void* data = ::mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_PRIVATE, file_->get(), 0);
  require(data != MAP_FAILED, "cannot map {}: {}", path_.string(), std::strerror(errno));
  data_ = static_cast<const std::byte*>(data);
  guard_.cover(data_, size_);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    guard_.release();
    ::munmap(const_cast<std::byte*>(data_), static_cast<size_t>(size_));
  }
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      file_(std::move(other.file_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      guard_(std::move(other.guard_)) {}

void MappedFile::read(std::span<const std::byte> part, std::byte* to) const {
  const int64_t begin = part.data() - data_;
  require(begin >= 0 && begin <= size_ && std::ssize(part) <= size_ - begin,
          "{}: {} bytes from byte {} are outside the file", path_.string(), part.size(), begin);
  int64_t done = 0;
  while (done < std::ssize(part)) {
    const ssize_t count =
        ::pread(file_->get(), to + done, part.size() - static_cast<size_t>(done), begin + done);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    const std::string reason = count < 0 ? std::strerror(errno) : "it has become shorter";
    require(count > 0, "cannot read {}: {}", path_.string(), reason);
    done += count;
  }
}

void MappedFile::require_intact() const {
  require(!guard_.lost(), "cannot read {}: it has become shorter, or its disk fails",
          path_.string());
}

bool is_inside(std::span<const std::byte> bytes, std::span<const std::byte> all) {
  const std::less_equal<> before;
  return before(all.data(), bytes.data()) &&
         before(bytes.data() + bytes.size(), all.data() + all.size());
}

void populate_pages(std::span<const std::byte> bytes) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGE_SIZE));
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
  const uintptr_t first = begin / page * page;
  const uintptr_t last = (begin + bytes.size() + page - 1) / page * page;
  if (first < last) {
    // A hint: where it fails, the pages come as they are read.
    ::madvise(reinterpret_cast<void*>(first), last - first, kPopulateRead);
  }
}

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

std::string read_text_file(const InputFile& file, int64_t max_bytes) {
  const MappedFile mapped(file);
  require(mapped.size() <= max_bytes, "{} has {} bytes; at most {} are read", file.string(),
          mapped.size(), max_bytes);
  std::string text(mapped.bytes().size(), '\0');
  mapped.read(mapped.bytes(), reinterpret_cast<std::byte*>(text.data()));
  return text;
}

}  // namespace sparsellm
