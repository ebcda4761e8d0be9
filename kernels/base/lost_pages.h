#pragma once

#include <cstdint>

namespace sparsellm {

// From now on a page of a MappedFile that cannot be read, because the file has become shorter or
// its disk fails, reads as zeros instead of ending the program with SIGBUS;
// MappedFile::require_intact() then throws. The handler of SIGBUS is the whole process's: a program
// calls this, a library does not.
void survive_lost_pages();

// A part of the address space that survive_lost_pages() looks after. Not more than kMaxGuards
// mappings at a time are; the others end the program as before.
class PageGuard {
 public:
  static constexpr int kMaxGuards = 4096;

  PageGuard() = default;
  ~PageGuard() { release(); }
  PageGuard(PageGuard&& other) noexcept;
  PageGuard& operator=(PageGuard&&) = delete;

  void cover(const void* data, int64_t bytes);
  void release() noexcept;  // before the part is unmapped

  // Whether a page could not be read.
  bool lost() const;

 private:
  int slot_ = -1;
};

}  // namespace sparsellm
