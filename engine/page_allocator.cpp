#include "engine/page_allocator.h"

#include <limits>

#include "kernels/base/error.h"

namespace sparsellm {

PageAllocator::PageAllocator(int64_t pages) {
  require(pages > 0 && pages <= std::numeric_limits<int32_t>::max(),
          "a KV cache of {} pages; it needs 1 to 2^31 - 1", pages);
  holders_.resize(static_cast<size_t>(pages), 0);
  free_.reserve(static_cast<size_t>(pages));
  for (int64_t page = pages - 1; page >= 0; --page) {
    free_.push_back(static_cast<int32_t>(page));
  }
}

void PageAllocator::take(int64_t count, std::vector<int32_t>& pages) {
  require(count >= 0 && count <= free_pages(), "{} pages asked for, {} are free", count,
          free_pages());
  pages.insert(pages.end(), free_.rbegin(), free_.rbegin() + count);
  for (auto page = free_.end() - count; page != free_.end(); ++page) {
    holders_[static_cast<size_t>(*page)] = 1;
  }
  free_.resize(free_.size() - static_cast<size_t>(count));
}

void PageAllocator::share(std::span<const int32_t> pages) {
  for (int32_t page : pages) {
    int32_t& holders = holders_.at(static_cast<size_t>(page));
    require(holders > 0, "page {} is shared, but nobody holds it", page);
    ++holders;
  }
}

void PageAllocator::give_back(std::span<const int32_t> pages) {
  for (auto page = pages.rbegin(); page != pages.rend(); ++page) {
    int32_t& holders = holders_.at(static_cast<size_t>(*page));
    require(holders > 0, "page {} is given back, but nobody holds it", *page);
    if (--holders == 0) {
      free_.push_back(*page);
    }
  }
}

}  // namespace sparsellm
