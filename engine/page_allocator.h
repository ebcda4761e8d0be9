#pragma once

#include <cstdint>
#include <vector>

namespace sparsellm {

// Hands out the pages of the KV cache by number.
class PageAllocator {
 public:
  explicit PageAllocator(int64_t pages);

  int64_t free_pages() const { return static_cast<int64_t>(free_.size()); }
  int64_t total_pages() const { return total_; }

  // There must be `count` free pages.
  std::vector<int32_t> take(int64_t count);
  // Leaves `pages` empty.
  void give_back(std::vector<int32_t>& pages);

 private:
  int64_t total_;
  std::vector<int32_t> free_;  // a stack: pages that are still in a cache are used again first
};

}  // namespace sparsellm
