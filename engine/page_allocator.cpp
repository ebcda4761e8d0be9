#include "engine/page_allocator.h"

#include <limits>

#include "kernels/base/error.h"

namespace sparsellm {

PageAllocator::PageAllocator(int64_t pages) : total_(pages) {
  require(pages > 0 && pages <= std::numeric_limits<int32_t>::max(),
          "a KV cache of {} pages; it needs 1 to 2^31 - 1", pages);
  free_.reserve(static_cast<size_t>(pages));
  for (int64_t page = pages - 1; page >= 0; --page) {
    free_.push_back(static_cast<int32_t>(page));
  }
}

std::vector<int32_t> PageAllocator::take(int64_t count) {
  require(count >= 0 && count <= free_pages(), "{} pages asked for, {} are free", count,
          free_pages());
  std::vector<int32_t> pages(free_.rbegin(), free_.rbegin() + count);
  free_.resize(free_.size() - static_cast<size_t>(count));
  return pages;
}

void PageAllocator::give_back(std::vector<int32_t>& pages) {
  free_.insert(free_.end(), pages.rbegin(), pages.rend());
  pages.clear();
  require(free_pages() <= total_, "more pages given back than there are");
}

}  // namespace sparsellm
