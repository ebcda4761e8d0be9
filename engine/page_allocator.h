#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sparsellm {

// Hands out the pages of the KV cache by number. A page may have several holders.
class PageAllocator {
 public:
  explicit PageAllocator(int64_t pages);

  int64_t free_pages() const { return static_cast<int64_t>(free_.size()); }
  int64_t total_pages() const { return static_cast<int64_t>(holders_.size()); }

  // Appends `count` pages, which must be free.
  void take(int64_t count, std::vector<int32_t>& pages);
  // One more holder for each of `pages`, which have one already.
  void share(std::span<const int32_t> pages);
  // A page is free when its last holder gave it back.
  void give_back(std::span<const int32_t> pages);

 private:
  std::vector<int32_t> holders_;  // of every page; 0: free
  std::vector<int32_t> free_;     // a stack: pages that are still in a cache are used again first
};

}  // namespace sparsellm
